//! State that guests drive: DHCP leases and the names of resolved addresses. No two clients have one
//! address, tables keep their bounds, and no address has a name that no answer gave it.
#![no_main]

use arbitrary::Arbitrary;
use fullsend_gateway::fuzzing::{DhcpStep, NameStep, learn_names, lease_addresses};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input {
    Leases { several: bool, steps: Vec<Dhcp> },
    Names(Vec<Name>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Dhcp {
    Discover(u8, Option<u8>),
    Request(u8, u8, u16),
    Release(u8),
    Decline(u8),
    Wait(u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    Learn(u8, u8, u16, bool),
    Wait(u16),
    Expire,
}

fuzz_target!(|input: Input| match input {
    Input::Leases { several, steps } => {
        let steps = steps.into_iter().map(|step| match step {
            Dhcp::Discover(id, wanted) => DhcpStep::Discover(id, wanted),
            Dhcp::Request(id, address, seconds) => DhcpStep::Request(id, address, seconds),
            Dhcp::Release(id) => DhcpStep::Release(id),
            Dhcp::Decline(id) => DhcpStep::Decline(id),
            Dhcp::Wait(seconds) => DhcpStep::Wait(seconds),
        });
        lease_addresses(&steps.collect::<Vec<_>>(), several);
    }
    Input::Names(steps) => {
        let steps = steps.into_iter().map(|step| match step {
            Name::Learn(name, address, seconds, is_queried) => {
                NameStep::Learn(name, address, seconds, is_queried)
            }
            Name::Wait(seconds) => NameStep::Wait(seconds),
            Name::Expire => NameStep::Expire,
        });
        learn_names(&steps.collect::<Vec<_>>());
    }
});
