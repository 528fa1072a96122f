//! Tests that the header and the library agree.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

/// Returns the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(common::HEADER_DIR.to_owned() + "/fullsend.h").unwrap();
    let code: String = header
        .split("/*")
        .map(|part| part.split_once("*/").map_or(part, |(_, code)| code))
        .collect();
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('));
    let functions = words.filter_map(|word| word.trim_start_matches('(').split_once('('));
    let names = functions.map(|(name, _)| name.to_owned());
    names.filter(|name| name.starts_with("fs_")).collect()
}

/// Returns the functions that the library exports.
fn exported() -> BTreeSet<String> {
    let library = common::library();
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(&library);
    let output = nm.output().expect("nm, of binutils");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    names
        .filter(|n| n.starts_with("fs_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn exactly_the_declared_symbols_are_exported() {
    let declared = declared();
    assert!(declared.len() >= 40, "{declared:?}");
    assert_eq!(declared, exported());
}

#[test]
fn c_and_cxx_programs_compile_and_link_with_the_header_only() {
    let mut code = String::from("#include <fullsend.h>\nvoid (*all[])(void) = {\n");
    for name in declared() {
        writeln!(code, "    (void (*)(void)){name},").unwrap();
    }
    code += "};\nint main(void) { return all[0] == 0 || fs_version()[0] == 0; }\n";
    let dir = common::temp_dir("header");
    let strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"];
    let program = common::compile(&dir, "all.c", &code, &strict);
    assert!(common::command(&program).status().unwrap().success());
    // The C++ compiler may be missing where there is a C compiler.
    if Command::new("c++").arg("--version").output().is_ok() {
        let code = "#include <fullsend.h>\nint main() { return fs_version()[0] == 0; }\n";
        let program = common::compile(&dir, "some.cc", code, &["-Wall", "-Werror"]);
        assert!(common::command(&program).status().unwrap().success());
    }
    std::fs::remove_dir_all(dir).unwrap();
}
