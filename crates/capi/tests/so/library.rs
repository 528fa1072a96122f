//! The library in the form that the tests load.

#[path = "../../src/lib.rs"]
mod library;
