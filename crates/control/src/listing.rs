//! Requests with one reply for each entry of a table, which is read in parts.

use fullsend_stack::SocketCursor;
use serde::Serialize;

use crate::answer::NO_GATEWAY;
use crate::gateway::FlowCursor;
use crate::view::SocketView;
use crate::{Inspect, Reply, Request};

/// Slots of the socket tables inspected under one lock.
const SLOTS_PER_LOCK: usize = 128;

/// The state of a listing.
#[derive(Debug)]
pub struct Listing {
    /// The position at which the listing continues; `None` at the end.
    position: Option<Position>,
}

#[derive(Debug)]
enum Position {
    Sockets { shard: usize, cursor: SocketCursor },
    Flows(FlowCursor),
    Forwards(u64),
}

impl Listing {
    /// Returns the beginning of the list that a request reads, or `None` for a request with one
    /// reply.
    pub fn of(request: &Request) -> Option<Self> {
        let position = match request {
            Request::Sockets => Position::Sockets {
                shard: 0,
                cursor: SocketCursor::default(),
            },
            Request::GatewayFlows => Position::Flows(FlowCursor::default()),
            Request::GatewayForwards => Position::Forwards(0),
            _ => return None,
        };
        Some(Self {
            position: Some(position),
        })
    }

    /// Returns the next items, or `None` at the end.
    ///
    /// # Errors
    /// The error reply to send.
    pub fn next(&mut self, engine: &impl Inspect) -> Result<Option<Vec<Reply>>, Reply> {
        let Some(position) = self.position.take() else {
            return Ok(None);
        };
        let gateway = || {
            let gateway = engine.gateway();
            gateway.ok_or_else(|| Reply::Error(NO_GATEWAY.to_owned()))
        };
        match position {
            Position::Sockets { shard, cursor } => {
                let mut sockets = Vec::new();
                let next = engine.with_host(shard, |host, _, now| {
                    host.sockets(now, cursor, SLOTS_PER_LOCK, &mut sockets)
                });
                self.position = match next {
                    Some(cursor) => Some(Position::Sockets { shard, cursor }),
                    None if shard + 1 < engine.shards() => Some(Position::Sockets {
                        shard: shard + 1,
                        cursor: SocketCursor::default(),
                    }),
                    None => None,
                };
                let several = engine.shards() > 1;
                let views = sockets.into_iter().map(|socket| {
                    let mut view = SocketView::from(socket);
                    if several && !view.id.is_empty() {
                        view.id = format!("{shard}.{}", view.id);
                    }
                    view
                });
                items(views)
            }
            Position::Flows(cursor) => {
                let mut flows = Vec::new();
                let next = gateway()?.flows(cursor, &mut flows);
                self.position = next.map(Position::Flows);
                items(flows)
            }
            Position::Forwards(after) => {
                let mut forwards = Vec::new();
                let next = gateway()?.forwards(after, &mut forwards);
                self.position = next.map(Position::Forwards);
                items(forwards)
            }
        }
    }
}

fn items(views: impl IntoIterator<Item = impl Serialize>) -> Result<Option<Vec<Reply>>, Reply> {
    let item = |view| serde_json::to_value(view).map(Reply::Item);
    let items = views.into_iter().map(item).collect::<Result<_, _>>();
    items
        .map(Some)
        .map_err(|error| Reply::Error(error.to_string()))
}
