"""What replaces CUDA kernels on a machine without a GPU: C++, built where it runs."""
