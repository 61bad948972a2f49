"""What a terminal and TensorBoard show while runs train."""
