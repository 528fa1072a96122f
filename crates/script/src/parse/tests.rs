use super::parse;
use crate::script::{Action, Body, ExprKind, Time};

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn packets_keep_their_fields() {
    let script = parse(
        "--ip_version=ipv6\n+.1 < [ect0] SEWA 0:0(0) win 7 <mss 1000,TS val 1 ecr 0,nop,FO ab>",
    )
    .unwrap();
    assert_eq!(script.settings[0].value, "ipv6");
    assert_eq!(script.events[0].time, Time::After(100_000_000));
    let Action::Inject(packet) = &script.events[0].action else {
        panic!("not inbound");
    };
    let Body::Tcp(segment) = &packet.body else {
        panic!("not TCP");
    };
    assert_eq!(segment.flags, 0x1c2);
    assert_eq!(segment.window, Some(7));
    assert_eq!(segment.options.as_ref().unwrap().len(), 4);
}

#[test]
fn times_have_five_forms() {
    let script = parse("* close(3) = 0 1.5 close(3) = 0 0.3...0.31 close(3) = 0 .1~.2 > S 0:0(0) +1~+2.25 > S 0:0(0) <...>")
        .unwrap();
    let times: Vec<_> = script.events.iter().map(|event| event.time).collect();
    assert_eq!(
        times,
        [
            Time::Any,
            Time::At(1_500_000_000),
            Time::At(300_000_000),
            Time::Between(100_000_000, 200_000_000),
            Time::AfterBetween(1_000_000_000, 2_250_000_000),
        ]
    );
    let Action::Call(call) = &script.events[2].action else {
        panic!("not a call");
    };
    assert_eq!(call.end, Some(310_000_000));
}

#[test]
fn calls_have_structures_and_errors() {
    let script = parse(
        "0 recvmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 10}], msg_flags=A|B}, 0) = -1 EAGAIN (try again)",
    )
    .unwrap();
    let Action::Call(call) = &script.events[0].action else {
        panic!("not a call");
    };
    assert_eq!(call.errno.as_deref(), Some("EAGAIN"));
    let ExprKind::Struct(fields) = &call.args[1].kind else {
        panic!("not a structure");
    };
    assert_eq!(fields[1].name.as_deref(), Some("msg_iov"));
    assert!(fields[1].count.is_some());
}

#[test]
fn errors_name_the_position_and_the_expected_token() {
    assert_eq!(
        error("0 < S 0:0(0)\n+0 < Sx 0:0(0)"),
        "2:7: expected flags (of S F R P . U E W A, a digit 0 to 7, or -), found \"x 0:0(0)\""
    );
    assert_eq!(error("0 < S 0:10(0)"), "1:7: 0:10 is not 0 bytes");
    assert_eq!(error("0 close(3) 0"), "1:12: expected \"=\", found \"0\"");
    assert!(error("0 < S 0:0(0) win 70000").contains("70000 is out of range for a window"));
    assert!(error("0 < S 0:0(0) <foo>").starts_with("1:15: expected a TCP option"));
    assert!(error("`abc").contains("ends with `"));
    assert!(error("hello").contains("expected a time"));
}

#[test]
fn macros_are_replaced_as_whole_words() {
    let names = [("COOKIE".to_owned(), "abcd".to_owned())];
    let text = "// COOKIE\n`x COOKIE` +0 f(\"COOKIE\", COOKIES, COOKIE) %{ COOKIE }% <FO COOKIE>";
    let want = "// COOKIE\n`x COOKIE` +0 f(\"COOKIE\", COOKIES, abcd) %{ COOKIE }% <FO abcd>";
    assert_eq!(super::define(text, &names), want);
    assert_eq!(super::define("\"open", &names), "\"open");
}

#[test]
fn any_number_of_flags_is_parsed() {
    let flags = "1|".repeat(100_000);
    let script = format!("0 poll([{{fd=3, events={flags}2}}], 1, 0) = 0");
    parse(&script).unwrap();
}
