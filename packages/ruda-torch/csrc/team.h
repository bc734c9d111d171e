// Our kernels on ATen's threads.
#pragma once

namespace ruda_torch {

// From now on ruda-runtime's parallel loops run on the OpenMP team that ATen's operators use. Idle
// threads of a team spin for a while before they sleep: with two teams, the one that has just worked
// takes the processors from the one that wants to, and a training step takes half as long again.
void install_team();

}  // namespace ruda_torch
