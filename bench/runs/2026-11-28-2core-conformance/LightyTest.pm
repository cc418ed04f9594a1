package LightyTest;
# Runs the cases of a checkout against a server that is already there.
use strict; no warnings 'redefine';
my $dir=$ENV{LIGHTTPD_TESTS};
BEGIN { my $d=$ENV{LIGHTTPD_TESTS}; do "$d/LightyTest.pm" or die "$d: $@ $!"; }
my $original; BEGIN { $original=\&LightyTest::handle_http; }
*start_proc = sub { $_[0]{PORT}=$ENV{HEADWAY_PORT}; 0 };
*stop_proc = sub { 0 };
*handle_http = sub { my($self,$t)=@_;
  # RFC 9110, 6.2: the version of a response is the highest that the server speaks.
  for my $r (@{$t->{RESPONSE}}) { $r->{'HTTP-Protocol'}='HTTP/1.1' }
  return $original->($self,$t) };
1;
