//! The packets of a small run of an experiment, as text and as a capture.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use fullsend_device::{Capture, CaptureInterface};
use fullsend_offload::{Packet, segment};
use fullsend_sim::{HostId, TraceEvent, TracePoint};

use crate::experiment::{Experiment, Progress, RunContext, Scale};
use crate::net::{CLIENT, LINK};
use crate::tcpdump::Tcpdump;

#[cfg(test)]
mod tests;

/// The parameters of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceConfig {
    /// Index of the case in [`Experiment::cases`].
    pub case: usize,
    /// Seed of all randomness.
    pub seed: u64,
    /// Show packets as on the wire, instead of super-segments as TCP passes them to the card.
    pub wire: bool,
}

/// Runs a small representative run of `experiment`, and writes the packets at the client's card to
/// `text`, one line each, and to `pcap` if it is given.
///
/// # Errors
/// Returns the error of writing to `text` or `pcap`; `Unsupported` if the experiment has no
/// network.
pub fn trace(
    experiment: &Experiment,
    config: TraceConfig,
    text: Box<dyn Write>,
    pcap: Option<Box<dyn Write + Send>>,
) -> io::Result<()> {
    let Some(run_trace) = experiment.trace else {
        let text = format!(
            "experiment `{}` has no network to trace; choose another one",
            experiment.name
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    };
    let capture = match pcap {
        Some(out) => {
            let name = if config.wire {
                "client, wire"
            } else {
                "client, before segmentation"
            };
            Some(Capture::new(out)?.add_interface(name, LINK)?)
        }
        None => None,
    };
    let recorder = Rc::new(RefCell::new(TraceWriter {
        wire: config.wire,
        dump: Tcpdump::default(),
        text,
        capture,
        result: Ok(()),
    }));
    let run = RunContext {
        case: config.case,
        seed: config.seed,
        scale: Scale::Quick,
        clock: None,
        progress: &Progress::default(),
    };
    run_trace(&run, &mut |net| {
        let recorder = recorder.clone();
        net.add_observer(move |event| recorder.borrow_mut().on_packet(event));
    });
    let mut recorder = recorder.borrow_mut();
    std::mem::replace(&mut recorder.result, Ok(()))?;
    recorder.text.flush()
}

struct TraceWriter {
    wire: bool,
    dump: Tcpdump,
    text: Box<dyn Write>,
    capture: Option<CaptureInterface>,
    /// The first error, which ends the trace.
    result: io::Result<()>,
}

impl TraceWriter {
    fn on_packet(&mut self, event: &TraceEvent<'_>) {
        let wanted = match event.point {
            TracePoint::Queued | TracePoint::Arrived => event.host == HostId(CLIENT),
            TracePoint::Sent | TracePoint::Lost(_) => false,
        };
        if !wanted || self.result.is_err() {
            return;
        }
        let mut packets = vec![event.packet.clone()];
        if self.wire {
            segment(event.packet.clone(), &mut packets);
            packets.remove(0);
        }
        self.result = self.record(event, &packets);
    }

    fn record(&mut self, event: &TraceEvent<'_>, packets: &[Packet]) -> io::Result<()> {
        for packet in packets {
            if let Some(line) = self.dump.line(event.at, packet) {
                writeln!(self.text, "{line}")?;
            }
        }
        match (&self.capture, event.point) {
            (None, _) => Ok(()),
            (Some(out), TracePoint::Arrived) => out.inbound(event.at.as_nanos(), packets),
            (Some(out), _) => out.outbound(event.at.as_nanos(), packets),
        }
    }
}
