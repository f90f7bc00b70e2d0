package popup

import (
	"strings"
	"sync"
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

// zones loads each time zone once. Its methods may be called concurrently.
type zones struct {
	mu     sync.RWMutex
	loaded map[string]*time.Location
}

// find returns a time zone; nil if there is none with this name. It does not keep name.
func (z *zones) find(name string) *time.Location {
	z.mu.RLock()
	zone := z.loaded[name]
	z.mu.RUnlock()
	if zone != nil {
		return zone
	}
	name = strings.Clone(name)
	if zone = loadZone(name); zone != nil {
		z.mu.Lock()
		defer z.mu.Unlock()
		if z.loaded == nil {
			z.loaded = map[string]*time.Location{}
		}
		if len(z.loaded) < zonesMax {
			z.loaded[name] = zone
		}
	}
	return zone
}
