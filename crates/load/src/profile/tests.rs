use super::*;

#[test]
fn directory_names_differ_for_close_loads() {
    assert_eq!(relative_name(0.2), "0.20");
    assert_eq!(relative_name(0.95), "0.95");
    assert_eq!(relative_name(0.955), "0.955");
    assert_eq!(relative_name(1.5), "1.50");
}

#[test]
fn median_is_the_middle_when_there_is_one() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0]), Some(3.0));
    assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
}
