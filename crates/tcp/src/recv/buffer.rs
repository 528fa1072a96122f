//! Text in order, waiting for its reader.
