//! Send reports of a test's flows: their sends and the limits that blocked them. The end that sends data
//! collects them and sends them to the other end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullsend_tcp::{FlowReport, SendLimit};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The buckets of a histogram that are not empty: the least value (a power of two) and the count.
pub(crate) type Buckets = BTreeMap<u32, u32>;

/// The effect of one send limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LimitEffect {
    /// Sends whose size the limit bounded.
    pub(crate) sends: u32,
    /// Time for which the limit blocked flows, ns.
    pub(crate) time_ns: u64,
}

/// The merged send reports of all flows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SendReport {
    /// The effect of each limit, by its name.
    pub(crate) limits: BTreeMap<String, LimitEffect>,
    /// Payload bytes of each super-segment.
    pub(crate) send_size: Buckets,
    /// Bytes that could still have been sent when each super-segment was sent.
    pub(crate) headroom: Buckets,
}

impl From<&FlowReport> for SendReport {
    fn from(flow: &FlowReport) -> Self {
        let effect = |limit| LimitEffect {
            sends: flow.sends(limit),
            time_ns: flow.time(limit).as_nanos(),
        };
        let limits = SendLimit::ALL.map(|limit| (limit.name().to_owned(), effect(limit)));
        Self {
            limits: limits.into(),
            send_size: flow.send_size.iter().collect(),
            headroom: flow.headroom.iter().collect(),
        }
    }
}

/// The flows of each test whose client has requested reports.
#[derive(Default)]
pub(crate) struct ReportCollector {
    tests: Mutex<BTreeMap<u32, TestReports>>,
    closed: Notify,
}

#[derive(Default)]
struct TestReports {
    /// The number of flows that have not reported yet.
    open: usize,
    /// The merged reports; `None` if no flow has reported.
    all: Option<FlowReport>,
}

impl ReportCollector {
    fn tests(&self) -> MutexGuard<'_, BTreeMap<u32, TestReports>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the reports of this test's flows until the returned value is dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, test: u32) -> ReportSubscription {
        self.tests().entry(test).or_default();
        ReportSubscription {
            collector: self.clone(),
            test,
        }
    }

    /// Registers a flow of this test.
    pub(crate) fn add_flow(self: &Arc<Self>, test: u32) -> FlowReporter {
        if let Some(account) = self.tests().get_mut(&test) {
            account.open += 1;
        }
        FlowReporter {
            collector: self.clone(),
            test,
        }
    }
}

/// A client's access to the reports of its test.
pub(crate) struct ReportSubscription {
    collector: Arc<ReportCollector>,
    test: u32,
}

impl ReportSubscription {
    /// Returns the merged reports after all registered flows have reported, or `None` if their stack does
    /// not provide reports.
    pub(crate) async fn all(&self) -> Option<SendReport> {
        loop {
            let closed = self.collector.closed.notified();
            let complete = match self.collector.tests().get(&self.test) {
                Some(account) => (account.open == 0).then_some(account.all),
                None => Some(None),
            };
            if let Some(all) = complete {
                return all.as_ref().map(SendReport::from);
            }
            closed.await;
        }
    }
}

impl Drop for ReportSubscription {
    fn drop(&mut self) {
        self.collector.tests().remove(&self.test);
    }
}

/// A registered flow, which counts as ended on drop.
pub(crate) struct FlowReporter {
    collector: Arc<ReportCollector>,
    test: u32,
}

impl FlowReporter {
    /// Reports the flow's sends, after all data was sent.
    pub(crate) fn report(self, report: &FlowReport) {
        if let Some(account) = self.collector.tests().get_mut(&self.test) {
            account.all.get_or_insert_default().merge(report);
        }
    }
}

impl Drop for FlowReporter {
    fn drop(&mut self) {
        if let Some(account) = self.collector.tests().get_mut(&self.test) {
            account.open = account.open.saturating_sub(1);
        }
        self.collector.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use fullsend_tcp::FlowReport;

    use super::{ReportCollector, ReportSubscription, SendReport};

    fn poll_all(subscription: &ReportSubscription) -> Poll<Option<SendReport>> {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(subscription.all()).poll(&mut cx)
    }

    #[test]
    fn reports_wait_for_all_flows() {
        let collector = Arc::new(ReportCollector::default());
        let subscription = collector.subscribe(7);
        assert_eq!(poll_all(&subscription), Poll::Ready(None));
        let flows = [
            collector.add_flow(7),
            collector.add_flow(7),
            collector.add_flow(8),
        ];
        let [first, second, _of_another] = flows;
        first.report(&FlowReport::default());
        assert_eq!(poll_all(&subscription), Poll::Pending);
        // A connection that fails reports nothing.
        drop(second);
        let all = SendReport::from(&FlowReport::default());
        assert_eq!(poll_all(&subscription), Poll::Ready(Some(all)));
    }

    #[test]
    fn reports_without_a_subscriber_are_dropped() {
        let collector = Arc::new(ReportCollector::default());
        collector.add_flow(7).report(&FlowReport::default());
        assert!(collector.tests().is_empty());
        let subscription = collector.subscribe(7);
        let late = collector.add_flow(7);
        drop(subscription);
        late.report(&FlowReport::default());
        assert!(collector.tests().is_empty());
    }

    #[test]
    fn a_send_report_round_trips_as_json() {
        let send_report = SendReport::from(&FlowReport::default());
        let text = serde_json::to_string(&send_report).unwrap();
        assert_eq!(
            serde_json::from_str::<SendReport>(&text).unwrap(),
            send_report
        );
    }
}
