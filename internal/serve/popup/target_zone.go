package popup

import (
	"maps"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // for systems without time zones
)

const (
	zoneBytesMax = 64
	zonesMax     = 1000 // kept in memory; IANA has about 600
)

// IsZone reports whether name is a time zone of the IANA database, such as Europe/Oslo or UTC.
func IsZone(name string) bool { return loadZone(name) != nil }

// loadZone returns a time zone; nil if there is none with this name.
func loadZone(name string) *time.Location {
	if !isZoneName(name) {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	return zone
}

// isZoneName reports whether a zone could have this name. The zone of this machine, and
// files beside the zones of its operating system, have none.
func isZoneName(name string) bool {
	if name == "" || len(name) > zoneBytesMax || name[0] < 'A' || name[0] > 'Z' || name == "Local" || strings.Contains(name, "//") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_+-/", rune(c)) {
			return false
		}
	}
	return true
}

// zones loads each time zone once. Its methods may be called concurrently and do not wait
// for each other.
type zones struct {
	loaded atomic.Pointer[map[string]*time.Location] // replaced when a zone is added
}

// find returns a time zone; nil if there is none with this name. It does not keep name.
func (z *zones) find(name string) *time.Location {
	if loaded := z.loaded.Load(); loaded != nil {
		if zone := (*loaded)[name]; zone != nil {
			return zone
		}
	}
	name = strings.Clone(name)
	zone := loadZone(name)
	if zone != nil {
		z.add(name, zone)
	}
	return zone
}

func (z *zones) add(name string, zone *time.Location) {
	for {
		old := z.loaded.Load()
		next := map[string]*time.Location{}
		if old != nil {
			if len(*old) >= zonesMax {
				return
			}
			next = maps.Clone(*old)
		}
		next[name] = zone
		if z.loaded.CompareAndSwap(old, &next) {
			return
		}
	}
}
