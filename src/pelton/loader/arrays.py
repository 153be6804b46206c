"""Array types of the loader."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
