//! The domains whose names the relay resolves itself.

use std::io;
use std::net::IpAddr;

use parking_lot::Mutex;

/// Most zones.
const ZONES_MAX: usize = 1024;
/// Most records of all zones together.
const RECORDS_MAX: usize = 4096;
/// Longest name, in bytes.
const NAME_MAX: usize = 253;

/// A domain whose names the DNS relay resolves itself: other names in it do not exist.
///
/// ```
/// use fullsend_gateway::Zone;
/// let mut zone = Zone::new("containers.internal");
/// zone.records.push(("host".to_owned(), "192.168.127.254".parse().unwrap()));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// The domain. A final dot and the case of letters do not matter.
    pub name: String,
    /// Names in the domain, without it, and their addresses. The first record of a name applies.
    pub records: Vec<(String, IpAddr)>,
    /// The address of the domain itself and of all names that have no record.
    pub default: Option<IpAddr>,
}

impl Zone {
    /// Returns a domain without names.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            records: Vec::new(),
            default: None,
        }
    }

    /// Returns the zone with its names in the form of [`Query::name`](crate::message::dns::Query::name).
    fn normalized(mut self) -> io::Result<Self> {
        normalize(&mut self.name)?;
        for (name, _) in &mut self.records {
            normalize(name)?;
        }
        Ok(self)
    }
}

/// Brings a name into lower case without a final dot.
fn normalize(name: &mut String) -> io::Result<()> {
    name.make_ascii_lowercase();
    if name.ends_with('.') {
        name.pop();
    }
    let is_label = |label: &str| (1..=63).contains(&label.len());
    let is_printable = name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_printable && name.len() <= NAME_MAX && name.split('.').all(is_label) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("`{name}` is not the name of a domain or host; write e.g. containers.internal"),
    ))
}

/// The result of looking a name up in the zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// No zone contains the name: the resolvers are queried.
    InNoZone,
    /// The name is in a zone that does not have it.
    NoSuchName,
    Address(IpAddr),
}

/// The zones of a gateway; the ones that were added last come first.
pub(crate) struct Zones(Mutex<Vec<Zone>>);

impl Zones {
    /// Returns the zones of the settings.
    pub(crate) fn new(zones: &[Zone]) -> io::Result<Self> {
        let all = Self(Mutex::default());
        for zone in zones.iter().rev() {
            all.add(zone.clone())?;
        }
        Ok(all)
    }

    /// Implements [`Handle::add_zone`](crate::Handle::add_zone).
    pub(crate) fn add(&self, zone: Zone) -> io::Result<()> {
        let mut zone = zone.normalized()?;
        let mut zones = self.0.lock();
        let found = zones.iter().position(|known| known.name == zone.name);
        let records: usize = zones.iter().map(|zone| zone.records.len()).sum();
        if found.is_none() && zones.len() >= ZONES_MAX || records + zone.records.len() > RECORDS_MAX
        {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "the zone {} is too many: a gateway has at most {ZONES_MAX} zones and \
                     {RECORDS_MAX} records",
                    zone.name
                ),
            ));
        }
        match found {
            Some(at) => {
                let old = &mut zones[at];
                zone.records.append(&mut old.records);
                // A new record hides an older one of the same name.
                let mut names = std::collections::BTreeSet::new();
                zone.records.retain(|(name, _)| names.insert(name.clone()));
                *old = zone;
            }
            None => zones.insert(0, zone),
        }
        Ok(())
    }

    /// Implements [`Handle::zones`](crate::Handle::zones).
    pub(crate) fn list(&self) -> Vec<Zone> {
        self.0.lock().clone()
    }

    /// Looks a name up in the zones.
    pub(super) fn find(&self, name: &str) -> Found {
        let zones = self.0.lock();
        let found = zones.iter().find_map(|zone| {
            let host = name.strip_suffix(&*zone.name)?;
            if !host.is_empty() && !host.ends_with('.') {
                return None;
            }
            let host = host.strip_suffix('.').unwrap_or_default();
            let record = zone.records.iter().find(|(name, _)| name == host);
            let address = record.map(|(_, address)| *address).or(zone.default);
            Some(address.map_or(Found::NoSuchName, Found::Address))
        });
        found.unwrap_or(Found::InNoZone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [192, 168, 127, last].into()
    }

    fn zones() -> Zones {
        let mut zone = Zone::new("Containers.Internal.");
        zone.records = vec![("gateway".into(), ip(1)), ("a.b".into(), ip(7))];
        Zones::new(&[zone]).unwrap()
    }

    #[test]
    fn names_of_a_zone_have_its_addresses_and_others_do_not_exist() {
        let zones = zones();
        for (name, expected) in [
            ("gateway.containers.internal", Found::Address(ip(1))),
            ("a.b.containers.internal", Found::Address(ip(7))),
            ("b.containers.internal", Found::NoSuchName),
            ("containers.internal", Found::NoSuchName),
            ("xcontainers.internal", Found::InNoZone),
            ("example.com", Found::InNoZone),
            ("", Found::InNoZone),
        ] {
            assert_eq!(zones.find(name), expected, "{name}");
        }
    }

    #[test]
    fn a_zone_of_the_same_name_takes_precedence_and_keeps_the_records() {
        let zones = zones();
        let mut again = Zone::new("containers.internal");
        again.records = vec![("gateway".into(), ip(2)), ("host".into(), ip(254))];
        again.default = Some(ip(9));
        for _ in 0..3 {
            zones.add(again.clone()).unwrap();
        }
        let found = |name: &str| match zones.find(name) {
            Found::Address(address) => Some(address),
            Found::InNoZone | Found::NoSuchName => None,
        };
        assert_eq!(found("gateway.containers.internal"), Some(ip(2)));
        assert_eq!(found("host.containers.internal"), Some(ip(254)));
        assert_eq!(found("a.b.containers.internal"), Some(ip(7)));
        assert_eq!(found("x.containers.internal"), Some(ip(9)));
        let list = zones.list();
        assert_eq!((list.len(), list[0].records.len()), (1, 3));
    }

    #[test]
    fn names_and_numbers_are_limited() {
        let zones = zones();
        for name in ["", ".", "a..b", "a b.c", &"x".repeat(64), &"x.".repeat(200)] {
            let error = zones.add(Zone::new(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        for n in 1..ZONES_MAX {
            zones.add(Zone::new(format!("zone{n}"))).unwrap();
        }
        let error = zones.add(Zone::new("more")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let mut many = Zone::new("zone1");
        many.records = (0..RECORDS_MAX).map(|n| (format!("n{n}"), ip(1))).collect();
        assert!(zones.add(many).is_err());
    }
}
