//! Text behind holes.
