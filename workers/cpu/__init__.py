"""What replaces CUDA kernels on a machine without a GPU: C++ for AVX2, built where it runs."""
