//! The port forwards of a running pasta, and the changes that pesto requests.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fullsend_gateway::{
    Forward, ForwardId, Handle, LoopbackClients, PortList, PortRange, PortSpec, Protocol, Side,
};
use tokio::sync::Mutex;

use super::auto::{AutoForwards, BINDS_AT_ONCE};
use super::network::{Plan, check_loops, forwards};

/// Interval at which the listening ports are read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most attempts to bind an address that has just been released: the runtime closes the old socket when
/// it next runs the forward's task.
const BIND_ATTEMPTS: usize = 10;

/// Most forwards that the changes of a request name: all ports of TCP and UDP, over IPv4 and IPv6,
/// deleted and added.
const NAMED_MAX: usize = 8 << 16;

/// A change of the table. All changes of a request apply, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Removes all forwards whose clients are on this side.
    Clear(Side),
    Add(Kind, PortSpec),
    Delete(Kind, PortSpec),
}

/// The side of a forward's clients, and its protocol.
pub(super) type Kind = (Side, Protocol);

/// The kind, address and interface at which a forward listens, unique in the table.
type Key = (Kind, SocketAddr, Option<String>);

/// The forwards of a gateway. Clones refer to the same table.
#[derive(Clone)]
pub(super) struct ForwardTable {
    handle: Handle,
    guest: [Option<IpAddr>; 2],
    clients: LoopbackClients,
    /// Whether TCP and UDP are relayed.
    tcp: bool,
    udp: bool,
    state: Arc<Mutex<State>>,
}

struct State {
    rules: BTreeMap<Key, (ForwardId, SocketAddr)>,
    /// The forwards that follow listening ports: for clients on the host, and for clients in the guest.
    auto: [AutoForwards; 2],
}

/// The intended content of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Target {
    rules: BTreeMap<Key, Rule>,
    auto: BTreeSet<Kind>,
}

/// The consequence of a forward that cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// The change stops with an error.
    Ends,
    /// The other forwards are bound, and the error is recorded.
    IsNoted,
}

/// The target of a forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    to: SocketAddr,
    /// Whether the forward is left out if its port is in use.
    optional: bool,
}

impl ForwardTable {
    /// Returns the table of a gateway that already has the plan's forwards, and adds the optional ones.
    pub(super) fn new(plan: &Plan, handle: Handle, auto: [AutoForwards; 2]) -> Self {
        for forward in &plan.optional_forwards {
            // A port that is in use is left to its program.
            let _ = handle.add_forward(forward.clone());
        }
        let rules = handle.list_forwards().into_iter();
        let rules = rules.map(|(id, forward)| (key(&forward), (id, forward.target())));
        let mut state = State {
            rules: rules.collect(),
            auto,
        };
        for auto in &mut state.auto {
            auto.set_kinds(&plan.auto, &handle);
        }
        Self {
            guest: plan.guest,
            clients: plan.config.loopback_clients,
            tcp: plan.config.tcp,
            udp: plan.config.udp,
            handle,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Follows the listening ports. Never returns.
    pub(super) async fn follow(self) {
        loop {
            for auto in &mut self.state.lock().await.auto {
                auto.poll(&self.handle);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Applies all changes, or none. Returns the tables before and after them.
    ///
    /// # Errors
    /// A text that names the forward that failed. The table is restored; the text names forwards that
    /// could not be, because another program has taken their ports meanwhile.
    pub(super) async fn apply(
        &self,
        changes: &[Change],
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let mut state = self.state.lock().await;
        let before = state.target();
        let mut target = before.clone();
        let mut named = 0;
        for change in changes {
            named += target.change(change, self.guest)?;
            if named > NAMED_MAX {
                return Err(format!(
                    "the changes name more than {NAMED_MAX} forwards; name fewer ports"
                ));
            }
            // Lets the guest's packets pass between the changes.
            tokio::task::yield_now().await;
        }
        self.check(&target)?;
        if let Err(error) = self.set(&mut state, &target, Failure::Ends).await {
            let text = error.to_string();
            return match self.set(&mut state, &before, Failure::IsNoted).await {
                Ok(()) => Err(text),
                Err(lost) => Err(format!("{text}; not restored: {lost}")),
            };
        }
        Ok((before.lines(), state.target().lines()))
    }

    /// Applies the command line's checks to a changed table.
    fn check(&self, target: &Target) -> Result<(), String> {
        let kinds = target.rules.keys().map(|key| key.0);
        for (_, protocol) in kinds.chain(target.auto.iter().copied()) {
            let (is_on, option) = match protocol {
                Protocol::Tcp => (self.tcp, "--no-tcp"),
                Protocol::Udp => (self.udp, "--no-udp"),
            };
            if !is_on {
                return Err(format!(
                    "pasta runs with {option}; start it without the option"
                ));
            }
        }
        let forwards = target.rules.iter();
        let forwards: Vec<_> = forwards.map(|(key, rule)| forward(key, rule.to)).collect();
        let forwards: Vec<_> = forwards.iter().collect();
        check_loops(&forwards, self.clients).map_err(|error| error.to_string())
    }

    /// Changes the forwards to `target`. New forwards are bound before old ones are removed, except those
    /// that need a removed forward's port.
    async fn set(&self, state: &mut State, target: &Target, failure: Failure) -> io::Result<()> {
        for auto in &mut state.auto {
            auto.set_kinds(&target.auto, &self.handle);
        }
        let stays =
            |key: &Key, to: SocketAddr| target.rules.get(key).is_some_and(|rule| rule.to == to);
        // The ports of removed forwards, for which new forwards may have to wait.
        let leaving: BTreeSet<(Kind, u16)> = state
            .rules
            .iter()
            .filter(|(key, (_, to))| !stays(key, *to))
            .map(|(key, _)| (key.0, key.1.port()))
            .collect();
        let mut failed = Vec::new();
        let waits = |key: &Key| leaving.contains(&(key.0, key.1.port()));
        let (later, now): (Vec<_>, Vec<_>) = target.rules.iter().partition(|(key, _)| waits(key));
        self.bind_all(state, &now, failure, &mut failed).await?;
        let mut removed = Vec::new();
        state.rules.retain(|key, (id, to)| {
            let stays = stays(key, *to);
            if !stays {
                removed.push(*id);
            }
            stays
        });
        for removed in removed.chunks(BINDS_AT_ONCE) {
            for id in removed {
                let _ = self.handle.remove_forward(*id);
            }
            // Lets the runtime close their sockets.
            tokio::task::yield_now().await;
        }
        self.bind_all(state, &later, failure, &mut failed).await?;
        for auto in &mut state.auto {
            auto.poll(&self.handle);
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(io::Error::other(failed.join(", ")))
    }

    /// Binds the rules that are not in the table.
    async fn bind_all(
        &self,
        state: &mut State,
        rules: &[(&Key, &Rule)],
        failure: Failure,
        failed: &mut Vec<String>,
    ) -> io::Result<()> {
        for (n, &(key, rule)) in rules.iter().enumerate() {
            // Lets the guest's packets pass between thousands of calls.
            if n % BINDS_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
            if state.rules.contains_key(key) {
                continue;
            }
            let ((side, protocol), listen, _) = key;
            let auto = &mut state.auto[usize::from(*side == Side::Guest)];
            auto.release(*protocol, listen.port(), &self.handle);
            match (self.bind(key, rule.to).await, failure) {
                (Ok(id), _) => {
                    state.rules.insert(key.clone(), (id, rule.to));
                }
                (Err(_), _) if rule.optional => {}
                (Err(error), Failure::Ends) => return Err(error),
                (Err(error), Failure::IsNoted) => failed.push(error.to_string()),
            }
        }
        Ok(())
    }

    async fn bind(&self, key: &Key, to: SocketAddr) -> io::Result<ForwardId> {
        let forward = forward(key, to);
        for _ in 1..BIND_ATTEMPTS {
            match self.handle.add_forward(forward.clone()) {
                // Removed sockets may still be open.
                Err(error) if error.kind() != ErrorKind::InvalidInput => {
                    tokio::task::yield_now().await;
                }
                done => return done,
            }
        }
        self.handle.add_forward(forward)
    }
}

impl State {
    fn target(&self) -> Target {
        let rules = self.rules.iter().map(|(key, (_, to))| {
            let rule = Rule {
                to: *to,
                optional: false,
            };
            (key.clone(), rule)
        });
        Target {
            rules: rules.collect(),
            auto: self.auto.iter().flat_map(AutoForwards::kinds).collect(),
        }
    }
}

impl Target {
    /// Applies a change, and returns the number of forwards that it names. `guest` has the guest's
    /// addresses.
    pub(super) fn change(
        &mut self,
        change: &Change,
        guest: [Option<IpAddr>; 2],
    ) -> Result<usize, String> {
        match change {
            Change::Clear(side) => {
                self.rules.retain(|key, _| key.0.0 != *side);
                self.auto.retain(|kind| kind.0 != *side);
            }
            Change::Add(_, PortSpec::None) | Change::Delete(_, PortSpec::None) => {}
            Change::Add(kind, PortSpec::Auto) => {
                self.auto.insert(*kind);
            }
            Change::Delete(kind, PortSpec::Auto) => {
                if !self.auto.remove(kind) {
                    let option = option(*kind);
                    return Err(format!("`{option} auto` is not in the table"));
                }
            }
            Change::Add(kind, spec) => {
                let named = forwards(*kind, spec, guest);
                for (optional, forward) in &named {
                    self.add(forward, *optional)?;
                }
                return Ok(named.len());
            }
            Change::Delete(kind, spec) => {
                let named = forwards(*kind, spec, guest);
                for (optional, forward) in &named {
                    self.delete(forward, *optional)?;
                }
                return Ok(named.len());
            }
        }
        Ok(0)
    }

    fn add(&mut self, forward: &Forward, optional: bool) -> Result<(), String> {
        let to = forward.target();
        match self.rules.entry(key(forward)) {
            Entry::Vacant(entry) => {
                entry.insert(Rule { to, optional });
                Ok(())
            }
            Entry::Occupied(entry) if entry.get().to == to || optional => Ok(()),
            Entry::Occupied(entry) => Err(leads_elsewhere(forward, entry.get().to)),
        }
    }

    fn delete(&mut self, forward: &Forward, optional: bool) -> Result<(), String> {
        match self.rules.entry(key(forward)) {
            Entry::Occupied(entry) if entry.get().to == forward.target() => {
                entry.remove();
                Ok(())
            }
            _ if optional => Ok(()),
            Entry::Occupied(entry) => Err(leads_elsewhere(forward, entry.get().to)),
            Entry::Vacant(_) => Err(format!(
                "`{}` is not in the table; --show prints it",
                line(&key(forward), forward.target(), 1)
            )),
        }
    }

    /// Returns the command-line options that produce this table. Consecutive ports become one option.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut runs: Vec<(&Key, SocketAddr, u16)> = Vec::new();
        for (key, rule) in &self.rules {
            match runs.last_mut() {
                Some((first, to, len)) if continues(first, *to, *len, key, rule.to) => {
                    *len += 1;
                }
                _ => runs.push((key, rule.to, 1)),
            }
        }
        let runs = runs.into_iter().map(|(key, to, len)| line(key, to, len));
        let auto = self
            .auto
            .iter()
            .map(|kind| format!("{} auto", option(*kind)));
        runs.chain(auto).collect()
    }
}

/// Returns whether a forward continues a run of `len` ports.
fn continues(first: &Key, to_first: SocketAddr, len: u16, key: &Key, to: SocketAddr) -> bool {
    let follows = |first: SocketAddr, next: SocketAddr| {
        first.ip() == next.ip() && first.port().checked_add(len) == Some(next.port())
    };
    first.0 == key.0 && first.2 == key.2 && follows(first.1, key.1) && follows(to_first, to)
}

/// Returns the forward of a rule.
fn forward(((from, protocol), listen, interface): &Key, to: SocketAddr) -> Forward {
    Forward {
        interface: interface.clone(),
        ..Forward::new(*from, *protocol, *listen, to)
    }
}

fn key(forward: &Forward) -> Key {
    let kind = (forward.from, forward.protocol);
    (kind, forward.listen(), forward.interface.clone())
}

/// Returns the command-line option for `len` consecutive ports.
fn line((kind, listen, interface): &Key, to: SocketAddr, len: u16) -> String {
    let list = PortList {
        address: Some(listen.ip()),
        interface: interface.clone(),
        ranges: vec![PortRange {
            first: listen.port(),
            last: listen.port() + (len - 1),
            to: Some(to.ip()),
            to_first: to.port(),
        }],
        ..PortList::default()
    };
    format!("{} {list}", option(*kind))
}

/// Returns the name of the command-line option for forwards of this kind.
const fn option((side, protocol): Kind) -> &'static str {
    match (side, protocol) {
        (Side::Host, Protocol::Tcp) => "-t",
        (Side::Host, Protocol::Udp) => "-u",
        (Side::Guest, Protocol::Tcp) => "-T",
        (Side::Guest, Protocol::Udp) => "-U",
    }
}

fn leads_elsewhere(forward: &Forward, to: SocketAddr) -> String {
    format!(
        "the table has `{}`, and not a forward to {}; delete it first",
        line(&key(forward), to, 1),
        forward.target()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: [Option<IpAddr>; 2] = [
        Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 100))),
        Some(IpAddr::V6(std::net::Ipv6Addr::new(
            0x2001, 0xdb8, 0, 0, 0, 0, 0, 7,
        ))),
    ];

    fn add(spec: &str) -> Change {
        Change::Add((Side::Host, Protocol::Tcp), spec.parse().unwrap())
    }

    fn delete(spec: &str) -> Change {
        Change::Delete((Side::Host, Protocol::Tcp), spec.parse().unwrap())
    }

    fn table(changes: &[Change]) -> Target {
        let mut target = Target::default();
        for change in changes {
            target.change(change, GUEST).unwrap();
        }
        target
    }

    #[test]
    fn consecutive_ports_are_one_line_and_a_line_is_an_option() {
        let target = table(&[
            add("127.0.0.1/8080-8083:80-83"),
            add("127.0.0.1/8084:90"),
            add("[::1]%lo/53"),
            Change::Add(
                (Side::Guest, Protocol::Tcp),
                "127.0.0.1/80".parse().unwrap(),
            ),
            Change::Add((Side::Host, Protocol::Udp), PortSpec::Auto),
        ]);
        let lines = [
            "-t 127.0.0.1/8080-8083:10.0.2.100/80-83",
            "-t 127.0.0.1/8084-8084:10.0.2.100/90-90",
            "-t [::1]%lo/53-53:[2001:db8::7]/53-53",
            "-T 127.0.0.1/80-80:127.0.0.1/80-80",
            "-u auto",
        ];
        assert_eq!(target.lines(), lines);
        let again: Vec<_> = lines[..3].iter().map(|line| add(&line[3..])).collect();
        let of_host = |target: Target| {
            let mut rules = target.rules;
            rules.retain(|key, _| key.0.0 == Side::Host);
            rules
        };
        assert_eq!(of_host(table(&again)), of_host(target));
    }

    #[test]
    fn deletions_remove_what_additions_made() {
        let target = table(&[
            add("8080:80,90"),
            add("7000"),
            delete("8080:80"),
            delete("7000"),
        ]);
        assert_eq!(
            target.lines(),
            [
                "-t 0.0.0.0/90-90:10.0.2.100/90-90",
                "-t [::]/90-90:[2001:db8::7]/90-90"
            ]
        );
        assert_eq!(
            table(&[add("80"), add("auto"), Change::Clear(Side::Host)]),
            Target::default()
        );
    }

    #[test]
    fn the_same_forward_may_be_added_twice_and_another_one_may_not() {
        let mut target = table(&[add("80"), add("80")]);
        let error = target.change(&add("80:81"), GUEST).unwrap_err();
        assert!(
            error.contains("`-t 0.0.0.0/80-80:10.0.2.100/80-80`"),
            "{error}"
        );
        // Ports that are not named keep theirs.
        target.change(&add("127.0.0.1/all"), GUEST).unwrap();
    }

    #[test]
    fn deletions_of_what_is_not_there_are_errors() {
        let mut target = table(&[add("80:81")]);
        for (change, text) in [
            (delete("80"), "`-t 0.0.0.0/80-80:10.0.2.100/81-81`"),
            (
                delete("90"),
                "`-t 0.0.0.0/90-90:10.0.2.100/90-90` is not in the table",
            ),
            (delete("auto"), "`-t auto` is not in the table"),
        ] {
            let error = target.change(&change, GUEST).unwrap_err();
            assert!(error.contains(text), "{change:?}: {error}");
        }
        assert_eq!(target.change(&delete("none"), GUEST), Ok(0));
    }
}
