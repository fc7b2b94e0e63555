/* Another author's headers and parts, for the test that kv_pool.c is a drop-in among them: bare
 * declarations from the interface's table of names, values and layouts, with no text in common
 * with include/, and implementations (foreign.c) as plain as can be. */
#ifndef FOREIGN_TINYLLM_H
#define FOREIGN_TINYLLM_H
#include <tinyllm/abi.h>
#include <tinyllm/ds.h>
#include <tinyllm/kv_pool.h>
#endif
