//! x
/// x
#[unsafe(no_mangle)]
pub extern "C" fn fs_version() -> i32 {
    1
}
