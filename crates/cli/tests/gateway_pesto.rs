//! `pesto`: the port forwards of a running pasta are shown and changed. Needs root.

mod pasta_net;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use pasta_net::{
    HOST, LOOPBACK, MACHINE, Namespace, Net, Over, Pasta, ask, serve, wait_until, with_net,
    with_port,
};

/// A guest, its pasta, and the options of pasta's line for the ports.
struct Running<'a> {
    net: &'a Net,
    guest: Namespace,
    pasta: Pasta,
}

impl<'a> Running<'a> {
    fn start(net: &'a Net, ports: &str) -> Self {
        let guest = Namespace::guest(false);
        let pasta = net.start_pasta(&format!(
            "--config-net --quiet -4 -c {} {ports} -T none -U none {}",
            net.path("conf").display(),
            guest.pid()
        ));
        Self { net, guest, pasta }
    }

    fn pesto(&self, options: &str) -> Output {
        let socket = self.net.path("conf");
        self.net
            .program("pesto", &format!("{options} {}", socket.display()))
    }

    /// Runs a pesto that succeeds, and returns its lines.
    fn change(&self, options: &str) -> Vec<String> {
        let output = self.pesto(options);
        assert!(output.status.success(), "{options}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    /// Runs a pesto that fails, and returns its error.
    fn refused(&self, options: &str) -> String {
        let output = self.pesto(options);
        assert_eq!(output.status.code(), Some(1), "{options}: {output:?}");
        assert!(output.stdout.is_empty(), "{options}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn forwards_of_a_running_pasta_are_added_deleted_and_replaced() {
    with_net(|net| {
        let running = Running::start(net, "-t 8080:80 -u none");
        let mode = std::fs::metadata(net.path("conf")).unwrap().permissions();
        assert_eq!(
            mode.mode() & 0o777,
            0o600,
            "other users may not change forwards"
        );
        running
            .guest
            .run(|| [80, 81].map(|port| serve(with_port("::", port))));
        let (host, from) = (with_port(HOST[0], 8080), MACHINE[0]);
        let ask_from_machine = |over, to| net.machine.run(move || ask(over, to));
        let line = |port: u16, to: u16| format!("-t 0.0.0.0/{port}-{port}:192.0.2.7/{to}-{to}");
        assert_eq!(running.change(""), [line(8080, 80)]);

        running.change("--add -u 8080:81 -t 127.0.0.1/9090:81");
        assert_eq!(
            ask_from_machine(Over::Udp, host).unwrap(),
            format!("81 {from}")
        );
        let answer = ask(Over::Tcp, with_port(LOOPBACK[0], 9090));
        assert_eq!(answer.unwrap(), format!("81 {}", HOST[0]));

        running.change("--delete -t 8080:80 --add -t 8081:81");
        let refused = ask_from_machine(Over::Tcp, host).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // The target of a port changes, also that of a UDP socket, which cannot be bound twice.
        let shown = running.change("--show -t 8080:81 -u 8080:80");
        let at = shown.iter().position(|line| line == "after:").unwrap();
        assert_eq!(shown[0], "before:");
        assert_eq!(
            shown[at + 1..],
            [line(8080, 81), line(8080, 80).replace("-t", "-u")]
        );
        for (over, port) in [(Over::Tcp, 81), (Over::Udp, 80)] {
            let answer = ask_from_machine(over, host).unwrap();
            assert_eq!(answer, format!("{port} {from}"), "{over:?}");
        }
        serve(with_port(LOOPBACK[0], 9000));
        let shown = running.change("--show --add -U 127.0.0.1/9001:9000");
        let line = "-U 127.0.0.1/9001-9001:127.0.0.1/9000-9000".to_owned();
        assert!(shown.contains(&line), "{shown:?}");
        let ask_in_guest = || {
            let guest = &running.guest;
            guest.run(|| ask(Over::Udp, with_port(LOOPBACK[0], 9001)))
        };
        assert_eq!(ask_in_guest().unwrap(), "9000 127.0.0.1");
        running.change("--clear SPLICE");
        let refused = ask_in_guest().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

        running.change("--clear HOST");
        assert_eq!(running.change("-s"), Vec::<String>::new());
        for over in [Over::Tcp, Over::Udp] {
            let refused = ask_from_machine(over, host).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{over:?}");
        }
    });
}

#[test]
fn changes_that_are_impossible_change_nothing() {
    with_net(|net| {
        let running = Running::start(net, "-t 8080:80 -u none");
        running.guest.run(|| serve(with_port("::", 80)));
        let used = TcpListener::bind((LOOPBACK[0], 0)).unwrap();
        let port = used.local_addr().unwrap().port();
        let before = running.change("");
        let too_many = (1..=9).map(|n| format!("-t 127.0.1.{n}/1-65535 "));
        for (options, text) in [
            (too_many.collect(), "name fewer ports".to_owned()),
            (
                format!("-t 8081,127.0.0.1/{port}"),
                "invalid port specification".to_owned(),
            ),
            (
                format!("-t 8081 -t 127.0.0.1/{port}"),
                format!("cannot bind TCP 127.0.0.1:{port}"),
            ),
            // What is removed comes back.
            (
                format!("-t 8080:81,8090-9000 -t 127.0.0.1/{port}"),
                format!("cannot bind TCP 127.0.0.1:{port}"),
            ),
            (
                "-A -t 8081 -T 0.0.0.0/8081".into(),
                "lead to each other".into(),
            ),
            ("-D -t 8080".into(), "delete it first".into()),
            ("-D -t 8082".into(), "is not in the table".into()),
            (
                "-U %lo/80".into(),
                "--udp-ns %lo/80 names an interface".into(),
            ),
        ] {
            let error = running.refused(&options);
            assert!(error.contains(&text), "{options}: {error}");
            assert_eq!(running.change(""), before, "{options}");
        }
        let answer = ask(Over::Tcp, with_port(LOOPBACK[0], 8080));
        assert!(answer.unwrap().starts_with("80 "));

        running.pasta.terminate();
        running.pasta.wait_for_end();
        assert!(!net.path("conf").exists());
        let error = running.refused("");
        assert!(
            error.starts_with("pesto: cannot use the socket "),
            "{error}"
        );
    });
}

#[test]
fn the_guests_listening_ports_are_followed_on_request() {
    with_net(|net| {
        let running = Running::start(net, "-t none -u none");
        running.guest.run(|| serve(with_port("::", 80)));
        let to = with_port(LOOPBACK[0], 80);
        running.change("-t auto");
        assert_eq!(running.change(""), ["-t auto"]);
        wait_until("the port is forwarded", || ask(Over::Tcp, to).is_ok());
        // A forward takes the port of an automatic one.
        running.guest.run(|| serve(with_port("::", 81)));
        running.change("--add -t 80:81");
        wait_until("the port leads to another one", || {
            ask(Over::Tcp, to).is_ok_and(|answer| answer.starts_with("81 "))
        });
        // The guest's loopback leads to the host's.
        serve(with_port(LOOPBACK[0], 9000));
        running.change("--add -T 8000:9000");
        let found = running
            .guest
            .run(|| ask(Over::Tcp, with_port(LOOPBACK[0], 8000)));
        assert_eq!(found.unwrap(), format!("9000 {}", LOOPBACK[0]));
        running.change("--delete -t auto -t 80:81 --clear SPLICE");
        let refused = ask(Over::Tcp, to).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn protocols_that_are_off_are_not_forwarded() {
    with_net(|net| {
        let running = Running::start(net, "-t 8080:80 --no-udp");
        let error = running.refused("-A -u 5300");
        assert!(error.contains("pasta runs with --no-udp"), "{error}");
        assert_eq!(running.change("").len(), 1);
    });
}
