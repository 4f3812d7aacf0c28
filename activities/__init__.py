"""One side effect each, over ports, and why repeating it is safe."""
