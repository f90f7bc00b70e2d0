package redis

import (
	"errors"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, url := range []string{
		"redis://localhost:6379/0", "redis://:p%40ss@[::1]:6379/15", "rediss://user:word@host?skip_verify=true", "unix:///run/redis.sock?db=2", "redis://h/?x#y",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		option, err := parse(url)
		if err != nil {
			if !errors.Is(err, errURL) {
				t.Errorf("%q: an error that may quote the address: %v", url, err)
			}
			return
		}
		if len(option.InitAddress) != 1 || option.InitAddress[0] == "" || option.SelectDB < 0 {
			t.Errorf("%q: %+v", url, option)
		}
	})
}
