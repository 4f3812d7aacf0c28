"""Who owns a bundle of topics: what a bundle is, and the lease that its owner's writes carry."""

from logstore.ownership.bundles import MAX_BUNDLES, BundleId, bundle_name, bundle_of, check_bundles, parse_bundle
from logstore.ownership.leases import Lease

__all__ = ["MAX_BUNDLES", "BundleId", "Lease", "bundle_name", "bundle_of", "check_bundles", "parse_bundle"]
