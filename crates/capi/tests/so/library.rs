//! The library as the tests load it.

#[path = "../../src/lib.rs"]
mod library;
