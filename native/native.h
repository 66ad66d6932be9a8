/* interface.h with what it needs around it, for the C files. */
#ifndef WORKBENCH_NATIVE_H
#define WORKBENCH_NATIVE_H

#include <stdint.h>

#include "interface.h"

#define WB_PARTIAL_ELEMENTS 65536 /* elements under one partial sum of squares; part of the interface */

/* Of updates that may be undone: the elements of a record, and the most of them whose state is kept whole. */
#define WB_RECORD_ELEMENTS 2048 /* part of the interface */
#define WB_ESCAPES 7

#endif
