/* replay_main.c - calls a fuzz target with files, in place of libFuzzer.
 *
 *      fuzz_import FILE ... */

#include "fuzz.h"

/* Each input lies in memory of exactly its size, so that a sanitizer sees its ends. */
static void replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = -1;
    if (file && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    uint8_t *data = size >= 0 ? malloc((size_t)size) : NULL;
    if (!data || fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, file) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last line before a crash names the input */
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE ...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) replay(argv[i]);
    printf("%d inputs\n", argc - 1);
    return 0;
}
