/* A stand-in for NVIDIA's libnvidia-ml.so.1, with the functions that gridq calls through pynvml.

   It reads the file that GRIDQ_STUB_NVML names anew at each call. Each line is a key, a space and a value:
     count 2                   how many cards there are
     0.uuid GPU-0              a field of card 0; "0/1.uuid" is one of its MIG instance 1
     0.process 4321 1048576    a process id and its bytes, one line for each
     0.lost 1                  every call for card 0 says that it is lost
     error FUNCTION 3          the function returns this code; "error.0 FUNCTION 3" for one card
     hang FUNCTION 30          the function waits so many seconds, or until the line is gone
   Without that file there is no driver. Built with -DOLD_DRIVER it lacks the functions of newer drivers. */

#define LINES_VARIABLE "GRIDQ_STUB_NVML"
#include "../driver_lines.h"
#include <time.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10, NO_LIBRARY = 12, LOST = 15 };

typedef struct { int card, instance; } device; /* instance -1: the whole card */
static device devices[16][9];

static int has_driver(void) {
  char value[64];
  return find("count", 0, value, sizeof value);
}

static void field(const device *of, const char *name, char *key) {
  if (of->instance < 0) sprintf(key, "%d.%s", of->card, name);
  else sprintf(key, "%d/%d.%s", of->card, of->instance, name);
}

static int text(const device *of, const char *name, char *value, unsigned size) {
  char key[64];
  field(of, name, key);
  return find(key, 0, value, size) ? SUCCESS : NOT_SUPPORTED;
}

/* What the file says of a call: hang, then the code that it returns. */
static int begin(const device *of, const char *function) {
  char key[96], value[64];
  struct timespec nap = {0, 20000000};
  time_t end = 0;
  sprintf(key, "hang %s", function);
  while (find(key, 0, value, sizeof value)) {
    if (!end) end = time(NULL) + atoi(value);
    if (time(NULL) >= end) break;
    nanosleep(&nap, NULL);
  }
  if (!has_driver()) return NO_LIBRARY;
  if (of) {
    sprintf(key, "%d.lost", of->card);
    if (number(key, 0)) return LOST;
    sprintf(key, "error.%d %s", of->card, function);
    if (number(key, SUCCESS)) return (int)number(key, SUCCESS);
  }
  sprintf(key, "error %s", function);
  return (int)number(key, SUCCESS);
}

#define BEGIN(of) int code = begin(of, __func__); if (code) return code

/* Reads one number of a device into *target. */
static int count_of(const device *of, const char *name, long long *target) {
  char value[64];
  int code = text(of, name, value, sizeof value);
  if (!code) *target = atoll(value);
  return code;
}

/* The rest of a call that returns the number `name` of a device in *target, of whatever type. */
#define RETURN_COUNT(of, name, target) \
  long long value; \
  BEGIN(of); \
  code = count_of(of, name, &value); \
  if (!code) *(target) = (__typeof__(*(target)))value; \
  return code

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN(NULL); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }

int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN(NULL); *count = (unsigned)number("count", 0); return SUCCESS; }

static device *handle(int card, int instance) {
  device *of = &devices[card][instance + 1];
  of->card = card;
  of->instance = instance;
  return of;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **of) {
  *of = handle((int)index, -1);
  BEGIN(*of);
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **of) {
  char value[128];
  BEGIN(NULL);
  for (int card = 0; card < number("count", 0); card++)
    for (int instance = -1; instance < 8; instance++)
      if (!text(handle(card, instance), "uuid", value, sizeof value) && !strcmp(uuid, value)) {
        *of = handle(card, instance);
        return begin(*of, __func__);
      }
  return NOT_FOUND;
}

int nvmlDeviceGetName(device *of, char *name, unsigned size) { BEGIN(of); return text(of, "name", name, size); }
int nvmlDeviceGetUUID(device *of, char *uuid, unsigned size) { BEGIN(of); return text(of, "uuid", uuid, size); }

int nvmlDeviceGetCudaComputeCapability(device *of, int *major, int *minor) {
  char value[64];
  BEGIN(of);
  code = text(of, "compute", value, sizeof value);
  if (!code) sscanf(value, "%d %d", major, minor);
  return code;
}

typedef struct { unsigned long long total, free, used; } memory;

int nvmlDeviceGetMemoryInfo(device *of, memory *info) {
  long long total, free, reserved = 0;
  BEGIN(of);
  if ((code = count_of(of, "total", &total)) || (code = count_of(of, "free", &free))) return code;
  count_of(of, "reserved", &reserved);
  info->total = (unsigned long long)total;
  info->free = (unsigned long long)free;
  info->used = info->total - info->free;
  return SUCCESS;
}

typedef struct { unsigned gpu, memory; } utilisation;

int nvmlDeviceGetUtilizationRates(device *of, utilisation *rates) {
  RETURN_COUNT(of, "utilisation", &rates->gpu);
}

int nvmlDeviceGetTemperature(device *of, int sensor, unsigned *celsius) {
  (void)sensor;
  RETURN_COUNT(of, "temperature", celsius);
}

int nvmlDeviceGetPowerUsage(device *of, unsigned *milliwatts) {
  RETURN_COUNT(of, "power", milliwatts);
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } process;

static int list_processes(device *of, unsigned *count, process *found) {
  char key[64], value[64];
  unsigned present = 0, room = found ? *count : 0;
  field(of, "process", key);
  for (; find(key, (int)present, value, sizeof value); present++)
    if (present < room) {
      long long bytes = -1;
      sscanf(value, "%u %lld", &found[present].pid, &bytes);
      found[present].bytes = (unsigned long long)bytes;
    }
  *count = present;
  return present > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(device *of, unsigned *count, process *found) {
  BEGIN(of);
  return list_processes(of, count, found);
}

int nvmlDeviceGetTotalEccErrors(device *of, int kind, int counter, unsigned long long *count) {
  (void)kind, (void)counter;
  RETURN_COUNT(of, "ecc", count);
}

int nvmlDeviceGetRetiredPagesPendingStatus(device *of, int *pending) {
  RETURN_COUNT(of, "pending", pending);
}

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

int nvmlDeviceGetMemoryInfo_v2(device *of, memory_v2 *info) {
  memory whole;
  long long reserved = 0;
  BEGIN(of);
  if ((code = nvmlDeviceGetMemoryInfo(of, &whole))) return code;
  count_of(of, "reserved", &reserved);
  info->total = whole.total;
  info->free = whole.free;
  info->reserved = (unsigned long long)reserved;
  info->used = whole.used - info->reserved;
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *of, unsigned *count, process *found) {
  BEGIN(of);
  return list_processes(of, count, found);
}

int nvmlDeviceGetTotalEnergyConsumption(device *of, unsigned long long *millijoules) {
  RETURN_COUNT(of, "energy", millijoules);
}

int nvmlDeviceGetRemappedRows(device *of, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  char value[64];
  BEGIN(of);
  code = text(of, "remapped", value, sizeof value);
  if (!code) sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed);
  return code;
}

int nvmlDeviceGetMigMode(device *of, unsigned *current, unsigned *pending) {
  long long slots;
  BEGIN(of);
  code = count_of(of, "mig", &slots);
  if (!code) *current = *pending = slots >= 0;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device *of, unsigned *count) {
  RETURN_COUNT(of, "mig", count);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *of, unsigned index, device **instance) {
  char uuid[128];
  BEGIN(of);
  *instance = handle(of->card, (int)index);
  return text(*instance, "uuid", uuid, sizeof uuid) ? NOT_FOUND : SUCCESS;
}
#endif

/* Events: each value of "0.xid" is one Xid, told once. */
typedef struct { device *of; unsigned long long type, data; unsigned instance, compute; } event;
static device *watched;
static long long told[16];

int nvmlEventSetCreate(void **set) { BEGIN(NULL); *set = &watched; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(device *of, unsigned long long types, void *set) {
  (void)types, (void)set;
  BEGIN(of);
  watched = of;
  told[of->card] = 0;
  return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event *data, unsigned milliseconds) {
  long long xid = 0;
  (void)set, (void)milliseconds;
  BEGIN(watched);
  count_of(watched, "xid", &xid);
  if (!xid || xid == told[watched->card]) return TIMED_OUT;
  told[watched->card] = xid;
  memset(data, 0, sizeof *data);
  data->of = watched;
  data->type = 8;
  data->data = (unsigned long long)xid;
  return SUCCESS;
}
