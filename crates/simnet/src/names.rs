//! The resolver of host names in each host's stack.

use std::sync::Arc;

use fullsend::{Resolve, Resolving, Stack};

use crate::shared::Shared;
use crate::topology::addresses;

/// The resolver of every stack, which returns the addresses of a host by its name, IPv4 first. Like the
/// stack's card, it refers to the network but not to the stacks.
pub(crate) struct Names(pub(crate) Arc<Shared>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, _: &'a Stack, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let node = self.0.lock().topology.find_host(name)?;
            let (v4, v6) = addresses(node);
            Ok(vec![v4.into(), v6.into()])
        })
    }
}
