//! The packets of a small run of an experiment, as text and as a capture.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use fullsend_device::{Capture, TapPoint};
use fullsend_offload::{Packet, segment};
use fullsend_sim::{HostId, Point, Tap};

use crate::experiment::{Experiment, Progress, Run, Scale};
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
/// Returns the error of writing to `text` or `pcap`; `Unsupported` if the experiment has no network.
pub fn trace(
    experiment: &Experiment,
    config: TraceConfig,
    text: Box<dyn Write>,
    pcap: Option<Box<dyn Write + Send>>,
) -> io::Result<()> {
    let Some(example) = experiment.trace else {
        let text = format!(
            "experiment `{}` has no network to trace; choose another one",
            experiment.name
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    };
    let tap = match pcap {
        Some(out) => {
            let name = if config.wire {
                "client, wire"
            } else {
                "client, before segmentation"
            };
            Some(Capture::new(out)?.tap_point(name, LINK)?)
        }
        None => None,
    };
    let recorder = Rc::new(RefCell::new(Recorder {
        wire: config.wire,
        dump: Tcpdump::default(),
        text,
        tap,
        result: Ok(()),
    }));
    let run = Run {
        case: config.case,
        seed: config.seed,
        scale: Scale::Quick,
        clock: None,
        progress: &Progress::default(),
    };
    example(&run, &mut |net| {
        let recorder = recorder.clone();
        net.watch(move |tap| recorder.borrow_mut().see(tap));
    });
    let mut recorder = recorder.borrow_mut();
    std::mem::replace(&mut recorder.result, Ok(()))?;
    recorder.text.flush()
}

struct Recorder {
    wire: bool,
    dump: Tcpdump,
    text: Box<dyn Write>,
    tap: Option<TapPoint>,
    /// The first error, which ends the trace.
    result: io::Result<()>,
}

impl Recorder {
    fn see(&mut self, tap: &Tap<'_>) {
        let wanted = match tap.point {
            Point::Queued | Point::Arrived => tap.host == HostId(CLIENT),
            Point::Sent | Point::Lost(_) => false,
        };
        if !wanted || self.result.is_err() {
            return;
        }
        let mut packets = vec![tap.packet.clone()];
        if self.wire {
            segment(tap.packet.clone(), &mut packets);
            packets.remove(0);
        }
        self.result = self.record(tap, &packets);
    }

    fn record(&mut self, tap: &Tap<'_>, packets: &[Packet]) -> io::Result<()> {
        for packet in packets {
            if let Some(line) = self.dump.line(tap.at, packet) {
                writeln!(self.text, "{line}")?;
            }
        }
        match (&self.tap, tap.point) {
            (None, _) => Ok(()),
            (Some(out), Point::Arrived) => out.inbound(tap.at.as_nanos(), packets),
            (Some(out), _) => out.outbound(tap.at.as_nanos(), packets),
        }
    }
}
