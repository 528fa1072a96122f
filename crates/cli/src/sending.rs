//! What the flows of a sender of data sent, and what held them back: counted at the end that sends,
//! and told to the other one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullsend_tcp::{FlowReport, SendLimit};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Least value and count of each bucket that is not empty; powers of two.
pub(crate) type Buckets = BTreeMap<u32, u32>;

/// One rule's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Sends whose size it bounded.
    pub(crate) sends: u32,
    /// How long it held flows back, ns.
    pub(crate) time_ns: u64,
}

/// All flows' reports together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sending {
    /// By the rules' names.
    pub(crate) limits: BTreeMap<String, Held>,
    /// Bytes of text of each transmit unit.
    pub(crate) send_size: Buckets,
    /// Bytes that could still go as each was sent.
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

/// The flows of each test whose client listens.
#[derive(Default)]
pub(crate) struct Ledger {
    tests: Mutex<BTreeMap<u32, Account>>,
    closed: Notify,
}

#[derive(Default)]
struct Account {
    /// Flows that are still to report.
    open: usize,
    /// `None`: no flow has reported.
    all: Option<FlowReport>,
}

impl Ledger {
    fn tests(&self) -> MutexGuard<'_, BTreeMap<u32, Account>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client listens to what this test's flows report, until the account is dropped.
    pub(crate) fn open(self: &Arc<Self>, test: u32) -> Listening {
        self.tests().entry(test).or_default();
        Listening {
            ledger: self.clone(),
            test,
        }
    }

    /// A flow of this test begins.
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

/// One test's account.
pub(crate) struct Listening {
    ledger: Arc<Ledger>,
    test: u32,
}

impl Listening {
    /// What the flows sent, once all of those that began have reported; `None` if the stack they
    /// run on does not tell.
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

/// A flow that reports as it ends, whatever ends it.
pub(crate) struct FlowAccount {
    ledger: Arc<Ledger>,
    test: u32,
}

impl FlowAccount {
    /// All has been sent.
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
        // A connection that breaks reports nothing.
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
