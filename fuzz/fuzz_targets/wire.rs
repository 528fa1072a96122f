//! Runs the parsers of `fullsend-wire`; the first byte selects one.
#![no_main]

use std::net::Ipv6Addr;

use fullsend_wire::arp::ArpRepr;
use fullsend_wire::checksum::{RunningSum, sum};
use fullsend_wire::dns::{Data, Response};
use fullsend_wire::ethernet::{EthernetRepr, EthernetView};
use fullsend_wire::extension::{has_whole_headers, parse_headers};
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::igmp::IgmpRepr;
use fullsend_wire::ipv4::{Ipv4Repr, Ipv4View, check_options};
use fullsend_wire::ipv6::{Ipv6Repr, Ipv6View};
use fullsend_wire::mld::MldRepr;
use fullsend_wire::ndp::NdpRepr;
use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::udp::UdpRepr;
use fullsend_wire::vnet::VnetHdr;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else {
        return;
    };
    match which % 12 {
        0 => tcp(data),
        1 => ipv4(data),
        2 => ipv6(data),
        3 => ethernet(data),
        4 => icmpv4(data),
        5 => icmpv6(data),
        6 => arp(data),
        7 => udp(data),
        8 => vnet(data),
        9 => dns(data),
        10 => groups(data),
        _ => checksum(data),
    }
});

fn dns(data: &[u8]) {
    let Ok(response) = Response::new(data) else {
        return;
    };
    let question = response.question();
    for answer in response.answers() {
        let _ = (
            answer.owner.is_same(question),
            answer.owner.labels().count(),
        );
        if let Data::Alias(alias) = answer.data {
            let _ = alias.is_same(question);
        }
    }
}

fn groups(data: &[u8]) {
    let _ = (IgmpRepr::parse(data), MldRepr::parse(data));
}

fn tcp(data: &[u8]) {
    let Ok((repr, len)) = TcpRepr::parse(data) else {
        return;
    };
    assert!(len <= data.len());
    let mut out = [0; 60];
    let emitted = repr.emit(&mut out);
    assert_eq!(emitted, repr.header_len());
    // Our layout of the same options may need more padding than that of the sender, and omits
    // options that do not fit. Those it contains must be unchanged when they are parsed and emitted
    // again.
    let (again, _) = TcpRepr::parse(&out[..emitted]).expect("what we write is right");
    let mut twice = [0; 60];
    assert_eq!(again.emit(&mut twice), emitted);
    assert_eq!(out, twice);
}

fn ipv4(data: &[u8]) {
    let Ok(view) = Ipv4View::new(data) else {
        return;
    };
    let _ = (
        view.payload(),
        view.options(),
        view.checksum_ok(),
        view.pseudo_sum(),
    );
    let _ = check_options(view.header());
    let repr = Ipv4Repr::parse(view);
    let mut out = [0; 20];
    repr.emit(&mut out);
    let again = Ipv4View::new(&out).expect("what we write is right");
    assert!(again.checksum_ok());
    assert_eq!(Ipv4Repr::parse(again), repr);
}

fn ipv6(data: &[u8]) {
    let Ok(view) = Ipv6View::new(data) else {
        return;
    };
    let repr = Ipv6Repr::parse(view);
    let mut out = [0; 40];
    repr.emit(&mut out);
    assert_eq!(out, data[..40]);
    let _ = has_whole_headers(repr.next_header, view.payload());
    if let Ok(upper) = parse_headers(repr.next_header, view.payload()) {
        assert!(upper.offset <= view.payload().len());
    }
}

fn ethernet(data: &[u8]) {
    if let Ok(view) = EthernetView::new(data) {
        assert_eq!(view.header_len() + view.payload().len(), data.len());
        EthernetRepr::parse(view).emit(&mut [0; 18]);
    }
}

fn icmpv4(data: &[u8]) {
    if let Ok(repr) = Icmpv4Repr::parse(data) {
        let mut out = vec![0; repr.len()];
        repr.emit(&mut out);
        assert_eq!(Icmpv4Repr::parse(&out), Ok(repr));
    }
}

fn icmpv6(data: &[u8]) {
    let Ok(repr) = Icmpv6Repr::parse(data) else {
        return;
    };
    let mut out = vec![0; repr.len()];
    repr.emit(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, &mut out);
    assert_eq!(Icmpv6Repr::parse(&out), Ok(repr));
    if let Icmpv6Repr::Ndp(NdpRepr::RouterAdvert { options, .. }) = repr {
        assert!(options.iter().count() <= data.len() / 8);
    }
}

fn arp(data: &[u8]) {
    if let Ok(repr) = ArpRepr::parse(data) {
        let mut out = [0; 28];
        repr.emit(&mut out);
        assert_eq!(out, data[..28]);
    }
}

fn udp(data: &[u8]) {
    if let Ok(repr) = UdpRepr::parse(data) {
        let mut out = [0; 8];
        repr.emit(&mut out);
        assert_eq!(out[..6], data[..6]);
    }
}

fn vnet(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let header = VnetHdr::parse(bytes);
        assert_eq!(VnetHdr::parse(&header.emit()), header);
    }
}

fn checksum(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else {
        return;
    };
    let mut running = RunningSum::default();
    for piece in data.chunks(usize::from(cut).max(1)) {
        running.push(piece);
    }
    assert_eq!(running.sum().fold(), sum(data).fold());
}
