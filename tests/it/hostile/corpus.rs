//! The stored inputs of the fuzz targets; any of them may have broken a parser once.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

#[test]
fn no_kept_input_breaks_a_parser() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (target, body) in bodies::TARGETS {
        let inputs = std::fs::read_dir(corpus.join(target)).expect("read a corpus");
        let mut count = 0;
        for input in inputs {
            let path = input.expect("read an entry").path();
            body(&std::fs::read(&path).expect("read an input"));
            count += 1;
        }
        assert!(count > 0, "{target} keeps no input");
        body(b"");
    }
}
