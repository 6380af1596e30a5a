//! The delegate `ipam-ds-static`.

fn main() {}
