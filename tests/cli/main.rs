//! The program `tollgate`, run as people run it.
