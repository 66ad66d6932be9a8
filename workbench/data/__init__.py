"""From text to batches, in the order of the files below.

    sources/        finds the files and datasets that `data.source` names and reads them an item at a time
    records, chats  turn a JSON record or a chat into token ids and a loss mask
    tokenizers/     bytes, pretrained tokenizers, and BPE tokenizers trained on the source
    tokenizing      encodes a source on several threads, in order
    split           decides which documents are for validation
    token_files     the prepared folder: token ids, document starts and loss masks, memory-mapped
    prepare         all of the above behind one call, with a cache
    batches/        samplers with an exact cursor, and evaluation batches

Invariant: the tokens follow from the source, the tokenizer and the `[data]` table alone, never from the machine.
"""
