package report

import "testing"

func TestFormat(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(seconds(0), "0")
	f(seconds(64e-9), "64 ns")
	f(seconds(812.4e-6), "812 µs")
	f(seconds(0.99996e-3), "1 ms")
	f(seconds(1.234e-3), "1.23 ms")
	f(seconds(70e-3), "70 ms")
	f(seconds(1.5), "1.5 s")
	f(seconds(119), "119 s")
	f(seconds(600), "10m0s")
	f(rate(2.5), "2.5/s")
	f(rate(20000.4), "20,000/s")
	f(rate(99.97), "100/s")
	f(number(12), "12")
	f(integer(-1234567), "-1,234,567")
	f(integer(999), "999")
	f(share(0), "0")
	f(share(0.00001), "<0.01 %")
	f(share(0.005), "0.5 %")
	f(share(0.12345), "12.3 %")
	f(share(0.99999), ">99.9 %")
	f(share(1), "100.0 %")
	f(size(0), "0 B")
	f(size(1536), "1.5 KiB")
	f(size(24<<20), "24 MiB")
	f(plural(1, "step"), "1 step")
	f(plural(2000, "step"), "2,000 steps")
	f(elapsed(90), "90 s")
	f(elapsed(300), "5 min")
	f(elapsed(7200), "2 h")
	f(significant(1234.5), "1234")
	f(significant(0.0012345), "0.00123")
	f(plainMarkdown("a|b <i> *x* `y`\n"), "a\\|b &lt;i\\> \\*x\\* \\`y\\` ")
	f(printable("a\x1b[31mb\nc\u009bd"), "a [31mb c d")
	f(inert("=1+1"), "'=1+1")
	f(tag("a b,c\nd"), "a_b_c_d")
}
