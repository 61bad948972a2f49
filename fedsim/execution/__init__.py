"""Where jobs are trained: in this process or in Ray actors."""
