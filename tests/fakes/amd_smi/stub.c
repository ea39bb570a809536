/* A stand-in for ROCm's libamd_smi.so, with the functions that gridq calls through the package amdsmi.

   The file that GRIDQ_STUB_AMD_SMI names has these lines, each for a card from 0 on:
     count 1               how many cards there are; without it the driver is not loaded
     0.uuid GPU-0          how ROCR_VISIBLE_DEVICES names it
     0.total 24560         MB, as 0.used
     0.process 77 1024     a process id and its bytes, one line for each
   The other functions that the package looks up are added by the test, and are not supported. */

#define LINES_VARIABLE "GRIDQ_STUB_AMD_SMI"
#include "../driver_lines.h"
#include <stdint.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2, DRIVER_NOT_LOADED = 34 };

static int cards[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static int text(const int *card, const char *name, char *value, size_t size) {
  char key[64];
  sprintf(key, "%d.%s", *card, name);
  return find(key, 0, value, size) ? SUCCESS : NOT_SUPPORTED;
}

static int amount(const int *card, const char *name, double *value) {
  char found[64];
  int code = text(card, name, found, sizeof found);
  if (!code) *value = atof(found);
  return code;
}

int amdsmi_init(uint64_t flags) { (void)flags; return number("count", -1) < 0 ? DRIVER_NOT_LOADED : SUCCESS; }
int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
  *count = 1;
  if (sockets) sockets[0] = cards;
  return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **found) {
  (void)socket;
  *count = (uint32_t)number("count", 0);
  for (uint32_t at = 0; found && at < *count; at++) found[at] = &cards[at];
  return SUCCESS;
}

typedef struct { uint32_t drm_render, drm_card, hsa_id, hip_id; char hip_uuid[256]; } enumeration;
int amdsmi_get_gpu_enumeration_info(int *card, enumeration *info) {
  return text(card, "uuid", info->hip_uuid, sizeof info->hip_uuid);
}

typedef struct { uint32_t total, used, reserved[2]; } vram;
int amdsmi_get_gpu_vram_usage(int *card, vram *usage) {
  double total, used;
  int code = amount(card, "total", &total);
  if (code || (code = amount(card, "used", &used))) return code;
  usage->total = (uint32_t)total;
  usage->used = (uint32_t)used;
  return SUCCESS;
}

typedef struct { char market_name[256]; uint32_t vendor_id; char rest[700]; } asic;
int amdsmi_get_gpu_asic_info(int *card, asic *info) {
  return text(card, "name", info->market_name, sizeof info->market_name);
}

typedef struct { uint32_t gfx, umc, mm, reserved[13]; } engines;
int amdsmi_get_gpu_activity(int *card, engines *usage) {
  double busy;
  int code = amount(card, "activity", &busy);
  if (!code) usage->gfx = (uint32_t)busy;
  return code;
}

int amdsmi_get_temp_metric(int *card, unsigned sensor, unsigned metric, int64_t *celsius) {
  double value;
  int code = amount(card, "temperature", &value);
  (void)sensor, (void)metric;
  if (!code) *celsius = (int64_t)value;
  return code;
}

typedef struct { uint64_t socket; uint32_t current, average; uint64_t gfx, soc, mem; uint32_t limit, pad; uint64_t more[18]; } power;
int amdsmi_get_power_info(int *card, power *info) {
  double watts;
  int code = amount(card, "power", &watts);
  info->current = 0xFFFF; /* this card tells the average alone */
  if (!code) info->average = (uint32_t)watts;
  return code;
}

int amdsmi_get_energy_count(int *card, uint64_t *count, float *resolution, uint64_t *time) {
  double value;
  int code = amount(card, "energy", &value);
  *time = 0;
  *resolution = 15.25f;
  if (!code) *count = (uint64_t)value;
  return code;
}

typedef struct {
  char name[256];
  uint32_t pid, pad;
  uint64_t mem, gfx, enc;
  uint32_t usage[12];
  uint64_t gtt, cpu, vram;
  uint32_t memory[10];
  char container[256];
  uint32_t occupancy, reserved[11];
} process;

int amdsmi_get_gpu_process_list(int *card, uint32_t *count, process *found) {
  char key[64], value[64];
  uint32_t present = 0;
  sprintf(key, "%d.process", *card);
  for (; present < *count && find(key, (int)present, value, sizeof value); present++) {
    unsigned long long bytes = 0;
    sscanf(value, "%u %llu", &found[present].pid, &bytes);
    found[present].vram = bytes;
  }
  *count = present;
  return SUCCESS;
}
