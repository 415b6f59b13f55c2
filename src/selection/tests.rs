use super::*;

fn rules(lines: &[&str]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for line in lines {
        match Parsed::of(line.as_bytes(), LineForm::Rules) {
            Ok(Parsed::Rules(more)) => rules.extend(more),
            Ok(Parsed::Clear) => rules.clear(),
            Ok(Parsed::Cvs) => rules.extend(Rule::of_cvs()),
            other => panic!("{line}: {other:?}"),
        }
    }
    rules
}

fn selector(lines: &[&str]) -> Selector {
    let rules = rules(lines);
    Selector::new(Selection {
        rules,
        ..Selection::default()
    })
    .unwrap()
}

/// A path that ends in a slash is a directory.
fn takes(selector: &Selector, here: &DirectoryRules, path: &str) -> bool {
    let is_directory = path.ends_with('/');
    let path = path.trim_end_matches('/');
    let (above, name) = path.rsplit_once('/').unwrap();
    selector.takes_name(here, above.as_bytes(), name.as_bytes(), is_directory)
}

/// `rsync -n -r --list-only` says the same of each.
#[test]
fn a_pattern_matches_what_it_matches_in_rsync() {
    for (pattern, matching, other) in [
        ("*.o", "/a.o /d/a.o /d.o/ /d/.o", "/a.oo /a.o/b"),
        ("/a", "/a /a/", "/d/a /ab"),
        ("a/", "/a/ /d/a/", "/a /d/a"),
        ("a/b", "/a/b /d/a/b /a/b/", "/xa/b /a/c/b /b"),
        ("/a/b", "/a/b", "/d/a/b"),
        ("/a/*/c", "/a/b/c", "/a/c /a/b/b/c"),
        ("a/**/c", "/a/b/c /a/b/b/c /d/a/b/c", "/a/c"),
        ("a/**", "/a/b /a/b/c /d/a/b", "/a/ /a"),
        ("a/***", "/a/ /a/b /a/b/c/ /d/a/", "/a /d/a"),
        ("/a/****", "/a/ /a/b", "/a /d/a/"),
        ("a*b*c", "/abc /axbxc /d/axbbcc", "/acb /a/bc /axbx"),
        (
            "/a*/*b/**/c*",
            "/ax/yb/z/c /a/b/x/y/cd",
            "/a/b/c /a/x/b/y/c",
        ),
        ("x**y/*z", "/x/1/y/az /d/xy/z", "/x/y/a/z"),
        ("**.o", "/a.o /d/a.o", "/a.oo"),
        ("**/a", "/a /d/a /d/e/a", "/ab"),
        ("a**b", "/ab /axb /a/x/b /d/a/b", "/a"),
        ("?.c", "/a.c /d/b.c", "/.c /ab.c"),
        ("[a-c]x", "/ax /cx", "/dx /-x"),
        ("[!a-c]x", "/dx /^x", "/ax"),
        ("[]a]x", "/]x /ax", "/bx"),
        ("[a\\]]x", "/]x /ax", "/\\x"),
        ("[[:digit:]_]x", "/7x /_x", "/ax"),
        ("[[:nonsense:]]x", "", "/ax /:x"),
        ("[ax", "", "/ax /[ax"),
        ("a\\*", "/a*", "/ab /a\\*"),
        ("a\\b", "/a\\b", "/ab"),
        ("a.c", "/a.c", "/abc"),
    ] {
        let selector = selector(&[&format!("- {pattern}")]);
        let here = DirectoryRules::default();
        for path in matching.split_whitespace() {
            assert!(!takes(&selector, &here, path), "{pattern} matches {path}");
        }
        for path in other.split_whitespace() {
            assert!(takes(&selector, &here, path), "{pattern} lets {path} be");
        }
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let selector = selector(&["+ keep.o", "- *.o", "+ *", "- keep.o"]);
    let here = DirectoryRules::default();
    assert!(takes(&selector, &here, "/keep.o"));
    assert!(!takes(&selector, &here, "/a.o"));
    assert!(takes(&selector, &here, "/a.c"));
}

#[test]
fn long_and_short_rules_mean_the_same() {
    for same in [
        &["- a", "exclude a", "-_a"][..],
        &["+ a", "include a", "include,p a"],
        &["H a", "hide a", "-s a"],
        &["S a", "show a", "+s a"],
        &["P a", "protect a", "-r a"],
        &["R a", "risk a", "+r a"],
    ] {
        let first = rules(&same[..1]);
        assert_eq!(first.len(), 1);
        for line in same {
            assert_eq!(rules(&[line]), first, "{line}");
        }
    }
    assert_eq!(rules(&["- a", "!", "- b"]), rules(&["- b"]));
    assert_eq!(rules(&["-x a", ": .a", "P,x a"]).len(), 1);
    assert_eq!(rules(&["-,sr a"]), rules(&["H a", "P a"]));
    assert!(!takes(
        &selector(&["-! *.c"]),
        &DirectoryRules::default(),
        "/a.o"
    ));
    assert!(!takes(
        &selector(&["-C"]),
        &DirectoryRules::default(),
        "/.git/"
    ));
}

/// As `rsync --delete` and `rsync --delete-excluded` do.
#[test]
fn a_rule_for_one_side_says_what_is_copied_or_what_is_kept() {
    let here = DirectoryRules::default();
    let lines = [
        "R risk.o",
        "H *.c",
        "P *.txt",
        "-s source",
        "- *.o",
        "-r there",
    ];
    let selector = selector(&lines);
    for (name, copied, kept, kept_though_excluded) in [
        ("a.c", false, false, false),
        ("a.txt", true, true, true),
        ("a.o", false, true, false),
        ("risk.o", false, false, false),
        ("source", false, false, false),
        ("there", true, true, true),
        ("other", true, false, false),
    ] {
        assert_eq!(
            takes(&selector, &here, &format!("/{name}")),
            copied,
            "{name}"
        );
        let protects = |excluded_too| {
            let place = (&b""[..], name.as_bytes());
            selector.protects(&here, place, false, excluded_too)
        };
        assert_eq!(protects(false), kept, "{name}");
        assert_eq!(protects(true), kept_though_excluded, "{name}");
    }
    assert!(selector.may_protect(true) && !Selector::default().may_protect(false));
}

#[test]
fn what_is_no_rule_is_refused_with_a_sentence() {
    for (line, why) in [
        ("a", "no such rule"),
        ("x a", "no such rule"),
        ("- ", "the pattern is missing"),
        ("-q a", "no modifier q"),
        ("-/ a", "absolute paths"),
        ("! a", "nothing may follow !"),
        ("-C a", "nothing may follow -C"),
        ("+C", "no modifier C"),
        (":! a", "no modifier !"),
        (":r .a", "applies to the source: modifier r"),
        (":", "the name of the file is missing"),
        (": a/b", "must not contain a slash"),
        (":-+ a", "exclude each other"),
        (": .", "cannot be the name of a rule file"),
        (": .fastcp-0011223344556677.part", "cannot be the name"),
    ] {
        let refused = Parsed::of(line.as_bytes(), LineForm::Rules).expect_err(line);
        assert!(refused.to_string().contains(why), "{line}: {refused}");
    }
    let long = [b"x ".to_vec(), vec![b'\x1b'; 5000]].concat();
    let refused = Parsed::of(&long, LineForm::Rules).unwrap_err().to_string();
    assert!(
        refused.len() < 600 && !refused.contains('\x1b'),
        "{refused}"
    );
    let refused = |rule: &str, times| {
        let selection = Selection {
            rules: vec![rules(&[rule]).remove(0); times],
            ..Selection::default()
        };
        Selector::new(selection).unwrap_err().to_string()
    };
    assert!(refused("- a", RULES_MAX + 1).contains("more than 10000"));
    assert!(refused(": .rules", 17).contains("more than 16"));
    assert!(refused(&format!("- {}", "a".repeat(4097)), 1).contains("4096 bytes"));
    assert!(refused(&format!("- {}", "a".repeat(4000)), 200).contains("512 KiB"));
}

#[test]
fn lines_are_patterns_or_rules_as_the_option_says() {
    let text = b"# comment\n\n; another\r\n+ a\n- b\nc\n!\nd";
    let lines = |form, splits| {
        let lines = RuleLines::new(text, form, splits);
        lines.map(|line| line.map_err(|why| why.to_string()))
    };
    let patterns: Vec<_> = lines(LineForm::Patterns { take: false }, false).collect();
    assert_eq!(patterns.len(), 5);
    assert_eq!(Parsed::of(b"", LineForm::Rules), Ok(Parsed::Rules(vec![])));
    assert_eq!(patterns[0], Ok(Parsed::Rules(rules(&["+ a"]))));
    assert_eq!(patterns[2], Ok(Parsed::Rules(rules(&["- c"]))));
    assert_eq!(patterns[3], Ok(Parsed::Clear));
    let bare: Vec<_> = lines(LineForm::BarePatterns { take: true }, false).collect();
    assert_eq!(bare[1], Ok(Parsed::Rules(rules(&["+ - b"]))));
    let words: Vec<_> = lines(LineForm::BarePatterns { take: false }, true).collect();
    assert_eq!(words.len(), 11, "{words:?}");
}

/// A matcher that tries all places for all wildcards would not end.
#[test]
fn a_pattern_of_many_wildcards_takes_no_longer_than_its_length() {
    let stars = "*a".repeat(2000);
    let paths = "**a/".repeat(1000);
    let selector = selector(&[&format!("- /{stars}b"), &format!("- {paths}b")]);
    let path = format!("/{}", "a".repeat(4000));
    let deep = "/a".repeat(2000);
    assert!(takes(&selector, &DirectoryRules::default(), &path));
    assert!(takes(&selector, &DirectoryRules::default(), &deep));
}

/// A directory's file counts before those above it, and after the rules that come before it.
#[test]
fn rules_in_a_directory_count_there_and_below() {
    let selector = selector(&["- never", ":e .rules", "- *.tmp"]);
    let enter = |outer: &DirectoryRules, path: &str, text: Option<&str>| {
        let read = |name: &[u8]| {
            assert_eq!(name, b".rules");
            Ok(text.map(|text| text.as_bytes().to_vec()))
        };
        selector.enter(outer, path.as_bytes(), read)
    };
    let nothing = DirectoryRules::default();
    let top = enter(&nothing, "", Some("- *.log\n+ /keep.tmp\n+ never")).unwrap();
    assert!(!takes(&selector, &top, "/a.log"));
    assert!(takes(&selector, &top, "/keep.tmp"));
    assert!(!takes(&selector, &top, "/other.tmp"));
    assert!(!takes(&selector, &top, "/never"), "a rule before the file");
    assert!(!takes(&selector, &top, "/.rules"), "modifier e");
    let below = enter(&top, "/d", Some("+ a.log\n- /x")).unwrap();
    assert!(
        takes(&selector, &below, "/d/a.log"),
        "the inner file is first"
    );
    assert!(
        !takes(&selector, &below, "/d/b.log"),
        "the outer one is next"
    );
    assert!(
        !takes(&selector, &below, "/d/x"),
        "anchored where it stands"
    );
    assert!(takes(&selector, &below, "/d/e/x"));
    assert!(
        !takes(&selector, &below, "/d/keep.tmp"),
        "anchored at the top"
    );
    let cleared = enter(&top, "/c", Some("!\n- x")).unwrap();
    assert!(takes(&selector, &cleared, "/c/a.log"));
    let inherited = enter(&below, "/d/e", None).unwrap();
    assert!(!takes(&selector, &inherited, "/d/e/b.log"));
    assert!(matches!(
        enter(&top, "/d", Some("- a\n\n# b\nnonsense")),
        Err(NoRules::Bad(_, 4, _))
    ));
    assert!(matches!(
        enter(&top, "/d", Some(": other")),
        Err(NoRules::Bad(..))
    ));
}

/// The walk returns to the rules above.
#[test]
fn cleared_rules_above_count_as_long_as_they_are_held() {
    let selector = selector(&[": .rules"]);
    let enter = |outer: &DirectoryRules, path: &str, text: &str| {
        selector.enter(outer, path.as_bytes(), |_| {
            Ok(Some(text.as_bytes().to_vec()))
        })
    };
    let many = format!("!\n{}", "- a\n".repeat(RULES_MAX * 2 / 5));
    let mut above = DirectoryRules::default();
    for _ in 0..2 {
        above = enter(&above, "/d", &many).unwrap();
    }
    assert!(enter(&above, "/d", "- a").is_ok());
    let refused = format!("{:?}", enter(&above, "/d", &many).unwrap_err());
    assert!(refused.contains("more than 10000"), "{refused}");
    let mut above = DirectoryRules::default();
    let path = "/d".repeat(100_000);
    let deep = (0..100).find_map(|_| enter(&above, &path, "!").map(|rules| above = rules).err());
    let refused = format!("{deep:?}");
    assert!(refused.contains("more than 4 MiB"), "{refused}");
}

#[test]
fn size_and_age_bound_files() {
    let selector = Selector::new(Selection {
        min_size: Some(10),
        max_size: Some(20),
        modified_from: Some(100),
        modified_to: Some(200),
        ..Selection::default()
    })
    .unwrap();
    for (size, modified, takes) in [
        (10, 100, true),
        (20, 200, true),
        (9, 150, false),
        (21, 150, false),
        (15, 99, false),
        (15, 201, false),
    ] {
        assert_eq!(
            selector.takes_file(size, modified),
            takes,
            "{size} {modified}"
        );
    }
}
