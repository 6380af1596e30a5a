//! Beside nodes that run releases of whereabouts, in their pools: while they are replaced one by
//! one, and on the way back.

mod amid_ours;
mod amid_theirs;
mod networks;
mod pace;
