/* The whole interface between Python and C. `build_native.py` hands this text to cffi and every C file gets it
 * through native.h, so that the two cannot disagree; therefore there are no preprocessor lines in it.
 *
 * Addresses travel as integers, because that is what Python has them as. Nothing here knows about torch.
 */

enum wb_instruction_set { WB_SCALAR = 0, WB_AVX2 = 1, WB_AVX512 = 2, WB_NEON = 3 };

enum wb_type { WB_FLOAT32 = 0, WB_BFLOAT16 = 1, WB_FLOAT16 = 2 };

/* How the moments are kept: float32; bfloat16; 8 bits with a scale for every 256 elements. */
enum wb_state_format { WB_EXACT = 0, WB_HALF = 1, WB_COMPACT = 2 };

/* What a call returns; a positive result is 1 + the index of the piece whose step count is below 1. */
enum wb_result { WB_OK = 0, WB_NO_MEMORY = -1 };

/* A run of consecutive elements of one parameter, with all that an update of it reads and writes. */
typedef struct {
    int64_t count;              /* elements */
    int64_t offset;             /* the first element's index in its parameter; a multiple of 65,536 */
    int64_t step;               /* 1 at the first update: the exponent of the bias corrections in this call */
    int64_t random_stream;      /* names the parameter: its roundings are its own */
    int64_t first_partial;      /* where this piece's partial sums begin */
    uintptr_t gradient;         /* 0: the piece is left untouched */
    uintptr_t master;           /* float32 master, or 0 where it is split into high and low */
    uintptr_t high;             /* bfloat16 bits: the upper half of a split master, which is the working weights */
    uintptr_t low;              /* int16: what high lacks */
    uintptr_t emit;             /* 16-bit working weights written beside a float32 master, or 0 */
    uintptr_t exp_avg;          /* float32, bfloat16 or int8 codes, as state_format says */
    uintptr_t exp_avg_sq;       /* float32, bfloat16 or uint8 codes */
    uintptr_t exp_avg_scale;    /* compact: float32, one for each 256 elements; else 0 */
    uintptr_t exp_avg_sq_scale; /* likewise */
    uintptr_t records;          /* of updates that may be undone: one for each 2,048 elements, or 0; at a multiple of 64 */
    int32_t gradient_type;      /* enum wb_type */
    int32_t emit_type;          /* WB_BFLOAT16 or WB_FLOAT16 */
    int32_t state_format;       /* enum wb_state_format */
    int32_t decay;              /* 0: weight_decay does not apply */
    double learning_rate_scale; /* learning_rate is multiplied by it; 0 stands for 1 */
} wb_piece;

typedef struct {
    double learning_rate;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    float gradient_scale;   /* unscaling and clipping in one factor */
    int32_t coupled_decay;  /* Adam: weight_decay times the parameter is added to the gradient */
    float speculated_scale; /* the gradient_scale of the update that is undone, where there is one */
} wb_adamw;

typedef struct wb_pool wb_pool;

/* 1 where this CPU has the instruction set and this build has its functions. */
int wb_has_instruction_set(int instruction_set);

/* `threads` counts the calling thread. NULL where memory ran out. */
wb_pool *wb_pool_create(int threads, int instruction_set);
/* Waits for the call that is under way and ends the threads; later calls run on their caller alone. */
void wb_pool_stop(wb_pool *pool);
void wb_pool_free(wb_pool *pool);

/* `partials`: NULL, or where the sums of squares go as in wb_sum_of_squares; then the elements under a sum that is not
 * finite are left untouched. */
int64_t wb_update(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, const wb_adamw *settings,
                  double *partials);
/* What is done ahead of a verdict, and after it. */
enum wb_speculation {
    WB_SPECULATE = 0, /* update what can be undone */
    WB_COMPLETE = 1,  /* update the rest: nothing is undone any more */
    WB_UNDO = 2,      /* give back the bits that were there before, by the same gradients and settings */
    WB_REDO = 3       /* undo, and update all with another gradient_scale */
};
/* The bytes of the record of 2,048 elements, or of the fewer at the end of a piece. */
int64_t wb_record_bytes(int state_format);
/* Pieces without records wait for the verdict; so do all with coupled decay or a beta1 up to 0.5. `left`: the elements of pieces with a gradient that are not updated yet when WB_SPECULATE is done. */
int64_t wb_speculation(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, const wb_adamw *settings,
                       int action, int64_t *left);
/* One float64 partial per 65,536 elements of each piece, in table order; 0 for a piece without a gradient. */
int64_t wb_sum_of_squares(wb_pool *pool, const wb_piece *pieces, int64_t piece_count, double *partials);

/* destination += source, or destination = source. */
void wb_accumulate(wb_pool *pool, uintptr_t destination, uintptr_t source, int source_type, int64_t count,
                   int overwrite);
/* destination = source, rounded to the nearest, ties to even, as torch does; 16-bit types. */
void wb_narrow(wb_pool *pool, uintptr_t destination, int destination_type, uintptr_t source, int64_t count);
void wb_split(wb_pool *pool, uintptr_t source, uintptr_t high, uintptr_t low, int64_t count);
void wb_join(wb_pool *pool, uintptr_t high, uintptr_t low, uintptr_t destination, int64_t count);
void wb_copy(wb_pool *pool, uintptr_t destination, uintptr_t source, int64_t bytes);
