/* interface.h with what it needs around it, for the C files. */
#ifndef WORKBENCH_NATIVE_H
#define WORKBENCH_NATIVE_H

#include <stdint.h>

#include "interface.h"

#define WB_PARTIAL_ELEMENTS 65536 /* elements under one partial sum of squares; part of the interface */

/* Of updates that may be undone: elements and bytes of a record, and the most elements of it whose state is kept
 * whole; part of the interface. */
#define WB_RECORD_ELEMENTS 2048
#define WB_ESCAPES 7
#define WB_RECORD_BYTES 8320

#endif
