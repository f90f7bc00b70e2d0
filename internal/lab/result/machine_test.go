package result

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestReadMachineFiles(t *testing.T) {
	files := fstest.MapFS{}
	for name, text := range map[string]string{
		"etc/os-release":                        "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		"proc/sys/kernel/osrelease":             "6.1.0-18-amd64\n",
		"proc/cpuinfo":                          "processor\t: 0\nmodel name\t: Some CPU @ 2.20GHz\n",
		"proc/meminfo":                          "MemTotal:        8000000 kB\nMemFree: 1 kB\n",
		"proc/sys/net/core/somaxconn":           "4096\n",
		"proc/sys/net/ipv4/tcp_tw_reuse":        "2\n",
		"proc/sys/net/ipv4/tcp_max_tw_buckets":  "65536\n",
		"proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
	} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	root := t.TempDir()
	if err := os.CopyFS(root, files); err != nil {
		t.Fatal(err)
	}
	want := Machine{
		OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0-18-amd64", CPU: "Some CPU @ 2.20GHz", Memory: 8000000 << 10,
		SoMaxConn: 4096, TCPTWReuse: 2, MaxTWBuckets: 65536, PortLow: 32768, PortHigh: 60999,
	}
	if diff := cmp.Diff(want, readMachine(root)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(Machine{TCPTWReuse: -1}, readMachine(t.TempDir())); diff != "" {
		t.Fatal(diff)
	}
	if m := ReadMachine(); m.Cores < 1 || m.NoFile == 0 || m.Kernel == "" {
		t.Fatalf("this host: %+v", m)
	}
}

func TestRedactURL(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := RedactURL(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	f("http://127.0.0.1:8080/x?offset=0&limit=10", "http://127.0.0.1:8080/x?offset=0&limit=10")
	f("postgres://app:s3cret@db:5432/x?sslmode=disable", "postgres://app:xxxxx@db:5432/x?sslmode=disable")
	f("http://h/x?token=s3cret&a=1", "http://h/x?token=xxxxx&a=1")
	f("mysql://app:s3c%zzret@db/x", "mysql://app:xxxxx@db/x")
	f("sqlite:/var/lib/x.db", "sqlite:/var/lib/x.db")
}

func TestRedactArgs(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		got := strings.Join(RedactArgs(strings.Split(in, "|")), "|")
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	f("load|http://u:s3cret@h/|--rate|100", "load|http://u:xxxxx@h/|--rate|100")
	f("--database=postgres://u:s3cret@h/db", "--database=postgres://u:xxxxx@h/db")
	f("--database=u:s3cret@tcp(h:3306)/db", "--database=u:xxxxx@tcp(h:3306)/db")
	f("--password|s3cret|x", "--password|xxxxx|x")
	f("--password=s3cret", "--password=xxxxx")
	f("--token|--rate|1", "--token|--rate|1")
	f("--header|Authorization: Bearer s3cret more", "--header|Authorization: xxxxx")
	f("--header|Accept: x|--header=X-Api-Key: s3cret", "--header|Accept: x|--header=X-Api-Key: xxxxx")
	f(`--body|{"name":"a","password":"s3cret"}`, `--body|{"name":"a","password":xxxxx`)
	f("host=h password='s3 cret' dbname=x", "host=h password=xxxxx dbname=x")
	f("--command|AUTH s3cret", "--command|AUTH xxxxx")
	f("--sql|SELECT a::int FROM t WHERE id = :id|--param|id=random(1,1000)", "--sql|SELECT a::int FROM t WHERE id = :id|--param|id=random(1,1000)")
}

// TestRedactNeverLeaks tries every place for a secret.
func TestRedactNeverLeaks(t *testing.T) {
	const secret = "hunter2"
	for _, args := range [][]string{
		{"https://u:" + secret + "@h:1/x?y=1"},
		{"--watch", "db=postgres://u:" + secret + "@h/x"},
		{"--database", "user=u password=" + secret},
		{"-H", "Cookie: a=" + secret + "; b=" + secret},
		{"--redis", "redis://:" + secret + "@h:6379/0"},
		{"--api-key", secret},
		{"--bearer-token=" + secret},
	} {
		clean := RedactArgs(args)
		if slices.ContainsFunc(clean, func(a string) bool { return strings.Contains(a, secret) }) {
			t.Errorf("%q leaks: %q", args, clean)
		}
	}
}
