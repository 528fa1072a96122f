//! Send reports of a test's flows: their sends and the limits that blocked them. The end that sends
//! data counts them and reports them to the other end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullsend_tcp::{FlowReport, SendLimit};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The buckets of a histogram that are not empty: least value (a power of two) and count.
pub(crate) type Buckets = BTreeMap<u32, u32>;

/// The effect of one send limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Sends whose size it bounded.
    pub(crate) sends: u32,
    /// Time that it blocked flows, in ns.
    pub(crate) time_ns: u64,
}

/// The merged send reports of all flows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sending {
    /// The effect of each limit, by its name.
    pub(crate) limits: BTreeMap<String, Held>,
    /// Payload bytes of each super-segment.
    pub(crate) send_size: Buckets,
    /// Bytes that could still have been sent when each super-segment was sent.
    pub(crate) headroom: Buckets,
}

impl From<&FlowReport> for Sending {
    fn from(flow: &FlowReport) -> Self {
        let held = |limit| Held {
            sends: flow.sends(limit),
            time_ns: flow.time(limit).as_nanos(),
        };
        let limits = SendLimit::ALL.map(|limit| (limit.name().to_owned(), held(limit)));
        Self {
            limits: limits.into(),
            send_size: flow.send_size.iter().collect(),
            headroom: flow.headroom.iter().collect(),
        }
    }
}

/// The flows of each test whose client has requested reports.
#[derive(Default)]
pub(crate) struct Ledger {
    tests: Mutex<BTreeMap<u32, Account>>,
    closed: Notify,
}

#[derive(Default)]
struct Account {
    /// Flows that have not reported yet.
    open: usize,
    /// The merged reports; `None`: no flow has reported.
    all: Option<FlowReport>,
}

impl Ledger {
    fn tests(&self) -> MutexGuard<'_, BTreeMap<u32, Account>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the reports of this test's flows until the result is dropped.
    pub(crate) fn open(self: &Arc<Self>, test: u32) -> Listening {
        self.tests().entry(test).or_default();
        Listening {
            ledger: self.clone(),
            test,
        }
    }

    /// Registers a flow of this test.
    pub(crate) fn flow(self: &Arc<Self>, test: u32) -> FlowAccount {
        if let Some(account) = self.tests().get_mut(&test) {
            account.open += 1;
        }
        FlowAccount {
            ledger: self.clone(),
            test,
        }
    }
}

/// A client's access to the reports of its test.
pub(crate) struct Listening {
    ledger: Arc<Ledger>,
    test: u32,
}

impl Listening {
    /// Returns the merged reports, after all registered flows have reported; `None` if their stack does
    /// not provide reports.
    pub(crate) async fn all(&self) -> Option<Sending> {
        loop {
            let closed = self.ledger.closed.notified();
            let settled = match self.ledger.tests().get(&self.test) {
                Some(account) => (account.open == 0).then_some(account.all),
                None => Some(None),
            };
            if let Some(all) = settled {
                return all.as_ref().map(Sending::from);
            }
            closed.await;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ledger.tests().remove(&self.test);
    }
}

/// A registered flow; its drop counts it as ended, however it ends.
pub(crate) struct FlowAccount {
    ledger: Arc<Ledger>,
    test: u32,
}

impl FlowAccount {
    /// Reports the flow's sends, after all data was sent.
    pub(crate) fn report(self, report: &FlowReport) {
        if let Some(account) = self.ledger.tests().get_mut(&self.test) {
            account.all.get_or_insert_default().merge(report);
        }
    }
}

impl Drop for FlowAccount {
    fn drop(&mut self) {
        if let Some(account) = self.ledger.tests().get_mut(&self.test) {
            account.open = account.open.saturating_sub(1);
        }
        self.ledger.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use fullsend_tcp::FlowReport;

    use super::{Ledger, Listening, Sending};

    fn told(listening: &Listening) -> Poll<Option<Sending>> {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(listening.all()).poll(&mut cx)
    }

    #[test]
    fn all_that_began_have_to_report() {
        let ledger = Arc::new(Ledger::default());
        let listening = ledger.open(7);
        assert_eq!(told(&listening), Poll::Ready(None));
        let flows = [ledger.flow(7), ledger.flow(7), ledger.flow(8)];
        let [first, second, _of_another] = flows;
        first.report(&FlowReport::default());
        assert_eq!(told(&listening), Poll::Pending);
        // A connection that fails reports nothing.
        drop(second);
        let all = Sending::from(&FlowReport::default());
        assert_eq!(told(&listening), Poll::Ready(Some(all)));
    }

    #[test]
    fn nothing_is_kept_of_tests_that_nobody_listens_to() {
        let ledger = Arc::new(Ledger::default());
        ledger.flow(7).report(&FlowReport::default());
        assert!(ledger.tests().is_empty());
        let listening = ledger.open(7);
        let late = ledger.flow(7);
        drop(listening);
        late.report(&FlowReport::default());
        assert!(ledger.tests().is_empty());
    }

    #[test]
    fn it_is_told_as_json() {
        let sending = Sending::from(&FlowReport::default());
        let text = serde_json::to_string(&sending).unwrap();
        assert_eq!(serde_json::from_str::<Sending>(&text).unwrap(), sending);
    }
}
