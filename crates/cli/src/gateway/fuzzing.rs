//! Entry points for fuzz targets of the requests to the programs' sockets.

pub use super::gvproxy::parse_requests as parse_gvproxy;
pub use super::pasta::parse_request as parse_pesto;
pub use super::slirp4netns::answer_request as answer_slirp4netns;
