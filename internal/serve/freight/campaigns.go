package freight

import "time"

// Campaign is one of the popups that the app shows to drivers on its home page, for a
// configuration.
type Campaign struct {
	Name         string
	Placement    string
	Order        int32
	Payload      string // JSON
	Target       string // over CampaignAttributes; empty: everybody
	QuietClick   time.Duration
	QuietDismiss time.Duration
	Cap          int
}

// CampaignAttribute is what a campaign may ask of a driver.
type CampaignAttribute struct {
	Name string
	Type string
}

// CampaignAttributes returns what the app tells of a driver with each request, and
// joined, which CampaignSQL reads.
func CampaignAttributes() []CampaignAttribute {
	return []CampaignAttribute{{"app_version", "integer"}, {"city", "text"}, {"joined", "timestamp"}}
}

// CampaignSQL reads what the database knows of a driver.
const CampaignSQL = "SELECT createtime AS joined FROM users WHERE id = :user"

// DefaultCampaigns returns three popups: for old versions of the app, for drivers who
// joined in the last summer of the data set, and for everybody.
func DefaultCampaigns() []Campaign {
	const day = 24 * time.Hour
	return []Campaign{
		{
			Name: "Update the app", Placement: "home", Order: 10, Target: "app_version < 30",
			Payload:    `{"title":"A new version is out","button":"Update","link":"/app/update"}`,
			QuietClick: day, QuietDismiss: 3 * day, Cap: 5,
		},
		{
			Name: "Fuel card for newcomers", Placement: "home", Order: 20, Target: `joined >= date("2016-06-01T00:00:00Z")`,
			Payload:    `{"title":"300 off your first fuel card","button":"Get it","link":"/fuel"}`,
			QuietClick: 7 * day, QuietDismiss: 7 * day,
		},
		{
			Name: "Weekend loads", Placement: "home", Order: 30,
			Payload:    `{"title":"Loads for the weekend","button":"Show","link":"/goodslist"}`,
			QuietClick: 2 * day, QuietDismiss: 2 * day,
		},
	}
}
