"""What stock SGLang lacks on a plain CPU; never on the path where a real sgl_kernel works."""
