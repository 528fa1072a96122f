use super::{NameLookup, Scope, parse};

struct Cwnd;

impl NameLookup for Cwnd {
    fn value(&self, name: &str) -> Option<i128> {
        (name == "tcpi_snd_cwnd").then_some(10)
    }
}

fn run(code: &str) -> Result<(), String> {
    let statements = parse(code).map_err(|(line, message)| format!("{line}: {message}"))?;
    let mut scope = Scope::default();
    let done = scope.run(&statements, &Cwnd, &mut Vec::new());
    done.map_err(|failure| format!("{}: {}", failure.line, failure.message))
}

#[test]
fn operators_have_python_precedence() {
    run("assert 1 + 2 * 3 == 7 and not 1 > 2").unwrap();
    run("assert 5 & 4 == 4\nassert (6 & 4) == 4, 'bits'").unwrap();
    run("assert 9 <= tcpi_snd_cwnd <= 11; assert 7 // 2 == 3; assert 7 / 2 == 3.5").unwrap();
    run("a = tcpi_snd_cwnd\nassert a - 10 == 0 or b\nassert (\n a ==\n 10)").unwrap();
    run("a = 1; a += 2; a -= 1; assert a == 2").unwrap();
    run("assert abs(-3) == max(1, 3) # so\nprint('x', a_name_in_no_way)").unwrap_err();
}

#[test]
fn a_failed_assertion_shows_the_values() {
    assert_eq!(
        run("\nassert tcpi_snd_cwnd == 11, tcpi_snd_cwnd").unwrap_err(),
        "1: assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd does not hold: tcpi_snd_cwnd is 10; 10"
    );
}

#[test]
fn unsupported_code_is_an_error() {
    assert!(
        run("assert")
            .unwrap_err()
            .contains("expected an expression")
    );
    assert!(
        run("while 1: pass")
            .unwrap_err()
            .contains("expected assert")
    );
    assert!(run("assert 1 // 0").unwrap_err().contains("is undefined"));
    assert!(
        run(&format!("assert {}1", "(".repeat(500)))
            .unwrap_err()
            .contains("nested")
    );
    for operator in ["+", " and ", " or ", "|"] {
        let long = format!("assert {}1", format!("1{operator}").repeat(100_000));
        assert!(run(&long).unwrap_err().contains("shorter"), "{operator}");
    }
}

#[test]
fn tuples_are_compared_item_by_item() {
    run("assert (tcpi_snd_cwnd, 2 + 1) == (10, 3), (1, 'a')").unwrap();
    run("assert (1, 2) < (1, 3) and (1,) < (1, 0) and () == () and (5) == 5").unwrap();
    run("assert tcpi_snd_cwnd in (9, 10,) and 'a' not in ('b', 'c')").unwrap();
    let error = run("a = (1, tcpi_snd_cwnd)\nassert a == (1, 11), a").unwrap_err();
    assert!(error.contains("a is (1, 10); (1, 10)"), "{error}");
    assert!(
        run("assert 1 in 2")
            .unwrap_err()
            .contains("requires a tuple")
    );
    assert!(run("assert (1 2)").unwrap_err().contains("expected \",\""));
}
