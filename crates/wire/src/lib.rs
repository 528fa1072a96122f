//! Packet formats: views that prove bounds once, reprs that are the meaning, and checksums.
#![no_std]

pub mod tcp;
