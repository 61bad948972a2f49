"""What several rules compute: least-norm points, projections, line searches, weights by row."""
