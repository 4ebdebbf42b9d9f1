"""What ranks measured, step by step: how it is gathered, kept in the object store, and read again."""

from mainspring.samples.parts import PartName as PartName
from mainspring.samples.parts import SamplePart as SamplePart
from mainspring.samples.parts import pack as pack
from mainspring.samples.parts import part_key as part_key
from mainspring.samples.parts import samples_folder as samples_folder
from mainspring.samples.parts import unpack as unpack
from mainspring.samples.reading import Curve as Curve
from mainspring.samples.reading import Heat as Heat
from mainspring.samples.reading import SampleReader as SampleReader
from mainspring.samples.reading import curve_of as curve_of
from mainspring.samples.reading import heat_of as heat_of
from mainspring.samples.reading import ideal_step_s as ideal_step_s
from mainspring.samples.reading import names_of as names_of
from mainspring.samples.recorder import TIME_PREFIX as TIME_PREFIX
from mainspring.samples.recorder import Recorder as Recorder
