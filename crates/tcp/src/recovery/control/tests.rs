use fullsend_wire::Mss;

use super::Recovery;

#[test]
fn a_new_connection_is_not_in_recovery() {
    let recovery = Recovery::new(Mss::clamped(1000), 3);
    assert!(recovery.allows_fast_path() && recovery.may_grow());
}
